"""Other values: the same demonstration about something else; what is not the user's own words stays as it was."""
import re

from fakes import tiny_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from sagelib.augment import Values, other_demonstration, other_pairs
from sagelib.prompts import reply, user_message

TOKENIZER = tiny_tokenizer()
MAIN = """def count_songs_by_artist(value):
    rows = pages(apis.spotify.show_songs, limit=20)
    return len([r for r in rows if value in r["artists"]])"""
LIBRARY = {"login": 'def login(app):\n    return "Later"'}
ROW = {"task_id": "s_1",
       "prompt": user_message('How many songs by the artist in my note "Later" are there?', LIBRARY),
       "turns": [{"text": reply('I need the artist from the note "Later".', 'print(read_note("Later"))'),
                  "observation": 'Remember the artist "Maria Lopez".', "trained": True},
                 {"text": reply("I answer.", f'{MAIN}\nprint(count_songs_by_artist("Maria Lopez"))'),
                  "observation": "17", "trained": True},
                 {"text": reply("The task is done.", "apis.supervisor.complete_task(answer=17)"),
                  "observation": "OK", "trained": True}]}


def test_a_value_changes_wherever_it_stands_and_nowhere_else():
    new = other_demonstration(ROW, Values(TOKENIZER, seed=0))
    [title] = re.findall(r'in my note "(.+)" are', new["prompt"])
    [name] = re.findall(r'artist "(.+)"\.', new["turns"][0]["observation"])
    answer = new["turns"][1]["observation"]
    assert title != "Later" and name != "Maria Lopez" and answer != "17"
    assert re.fullmatch("[A-Z][a-z]*", title) and re.fullmatch("[A-Z][a-z]* [A-Z][a-z]*", name)
    assert re.fullmatch(r"[1-9]\d", answer)
    assert new["turns"][0]["text"] == reply(f'I need the artist from the note "{title}".', f'print(read_note("{title}"))')
    assert new["turns"][1]["text"] == reply("I answer.", f'{MAIN}\nprint(count_songs_by_artist("{name}"))')
    assert new["turns"][2]["text"] == reply("The task is done.", f"apis.supervisor.complete_task(answer={answer})")
    assert new["prompt"].startswith('Skills:\ndef login(app):\n    return "Later"\n')
    assert ROW["turns"][1]["observation"] == "17"


def test_an_argument_that_was_not_copied_stays():
    row = {**ROW, "prompt": "Task: Delete my notes.", "turns": [
        {"text": reply("I act.", 'delete_notes("Maria Lopez", 20)'), "observation": "OK", "trained": True}]}
    assert other_demonstration(row, Values(TOKENIZER, seed=0)) == row


def test_equal_seeds_give_equal_values():
    one, two, three = (other_demonstration(ROW, Values(TOKENIZER, seed)) for seed in (1, 1, 2))
    assert one == two != three


def test_pairs_change_in_both_halves():
    pairs = [{"kind": "call", "text": 'notes: tagged "bela"', "code": 'tagged("bela")', "value": "bela"},
             {"kind": "call", "text": "longer than 17", "code": "longer(17)", "value": 17},
             {"kind": "source", "text": "my notes", "code": "pages(notes)"},
             {"kind": "after", "text": "the tag in my note", "look_up": "read()", "shown": 'Take "bela".',
              "code": 'tagged("bela")', "value": "bela"}]
    new, after = other_pairs(pairs, Values(TOKENIZER, seed=0))
    assert after["shown"] == f'Take "{after["value"]}".' and after["code"] == f'tagged("{after["value"]}")'
    assert after["value"] != "bela" and after["look_up"] == "read()"
    assert new["value"] != "bela"
    assert new["text"] == f'notes: tagged "{new["value"]}"' and new["code"] == f'tagged("{new["value"]}")'


@given(st.text(alphabet="abcXYZ019 .-:", min_size=1, max_size=20), st.integers(0, 99))
def test_a_value_keeps_its_shape(value, seed):
    def shape(text):
        words = re.sub("[A-Z][a-z]*", "A", re.sub("(?<![A-Za-z])[a-z]+", "a", text))
        return re.sub(r"\d", "0", words)
    if re.search("[a-zA-Z][A-Z]", value):   # capitals inside a word: one piece of one shape
        return
    new = Values(TOKENIZER, seed).like(value)
    assert shape(new) == shape(value), (value, new)
