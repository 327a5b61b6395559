"""Demonstrations: what each style of player does in the shop, and that imitation sees exactly its own tokens."""
import random
import re

import pytest
from fakes import tiny_format

from sagelib.rise_demos import WIDE, Mixture, demonstrate, examples, texts, tokenizer_for
from sagelib.rise_document import Carry
from sagelib.rise_play import sequences
from sagelib.rise_prompts import Budgets
from sagelib.rise_sequences import CheckedWorld
from sagelib.rise_types import LoopSettings
from sagelib.rise_worlds import Style, find
from sagelib.sft import IGNORED
from sagelib.shop import ShopPool
from sagelib.shop_exercises import copying_pairs
from sagelib.shop_expert import FEATURES, GENERAL, next_action, read_document, reply_to, revised_document, thought
from sagelib.shop_world import KINDS, build

BARS = "Find me soy free protein bars with flavor: cocoa, and size: 6 count, and price lower than 70.00 dollars"
LIST = "Results:\nBrisca protein bar S47\nFennway protein bar S12"
EXPERT, HASTY, UNREAD, GENERAL_ONLY = Mixture(), Mixture(hasty=1.0), Mixture(unread=1.0), Mixture(general=1.0)


EXPERT_STYLE = Style()
SHOP = find("shop-smoke")


# ---- single decisions

def action(document="", *steps, style=EXPERT_STYLE):
    return next_action(BARS, document, [a for a, _ in steps], [p for _, p in steps], style)


SEARCHED = ("search[protein bars]", LIST)
OPENED = ("click[s47]", "Brisca protein bar")
READ = ("click[features]", "By Brisca.\nThis protein bar is low sugar.")


def test_what_the_expert_does_without_a_document():
    assert action() == "search[protein bars]" and action("", SEARCHED) == "click[s47]"
    assert action("", SEARCHED, OPENED) == "click[features]" and action("", SEARCHED, OPENED, READ) == "click[< prev]"
    back = [("click[< prev]", "Brisca protein bar"), ("click[< prev]", LIST)]
    assert action("", SEARCHED, OPENED, READ, back[0]) == "click[< prev]"        # not this one: to the list
    assert action("", SEARCHED, OPENED, READ, *back) == "click[s12]"             # the next one
    right = ("click[features]", "By Brisca.\nThis protein bar is soy free.")
    assert action("", SEARCHED, OPENED, right, back[0]) == "click[cocoa]"
    chosen = ("click[cocoa]", "Brisca protein bar\nchosen: cocoa")
    assert action("", SEARCHED, OPENED, right, back[0], chosen) == "click[6 count]"
    both = ("click[6 count]", "Brisca protein bar\nchosen: cocoa, 6 count")
    assert action("", SEARCHED, OPENED, right, back[0], chosen, both) == "click[buy now]"


def test_the_document_saves_reading():
    assert action("- soy free: Fennway", SEARCHED) == "click[s12]"
    assert action("- soy free: Fennway", SEARCHED, ("click[s12]", "Fennway protein bar")) == "click[cocoa]"
    assert action("- low sugar: Brisca", SEARCHED) == "click[s12]"               # that one it is not
    assert action("- soy free: Fennway", SEARCHED, style=Style(document=False)) == "click[s47]"
    assert action("", SEARCHED, OPENED, style=Style(careful=False)) == "click[cocoa]"


def test_what_is_written_down():
    assert read_document(revised_document("- soy free: Fennway", [READ[1]])) == {"soy free": "Fennway", "low sugar": "Brisca"}
    assert revised_document("- soy free: Fennway", [READ[1]], Style(notes=False)) == GENERAL and read_document(GENERAL) == {}


def test_what_was_seen_is_added_at_the_end_in_the_order_of_the_attempt():
    """Copied from top to bottom, with nothing to sort: `low sugar` comes after `soy free` here, and before it in the alphabet."""
    pages = [READ[1], "By Holmby.\nThis protein bar is gluten free."]
    text = revised_document("Brands of this store:\n- soy free: Fennway", pages)
    assert text == "Brands of this store:\n- soy free: Fennway\n- low sugar: Brisca\n- gluten free: Holmby"


def test_what_is_said_before_an_action():
    known = "- soy free: Fennway"
    assert thought(BARS, known, [LIST]) == "soy free: Fennway." and thought(BARS, "- low sugar: Brisca", [LIST]) == ""
    assert thought(BARS, known, [LIST], Style(document=False)) == "" and thought(BARS, known, []) == ""
    assert thought(BARS, known, [READ[1]]) == "This is low sugar, wanted is soy free: no."
    assert thought(BARS, "", ["By Brisca.\nThis protein bar is soy free."]) == "This is soy free, wanted is soy free: yes."
    assert thought(BARS, known, ["Fennway protein bar"]) == ""


def test_shares_of_a_mixture():
    rng, mixture = random.Random(0), Mixture(hasty=0.4, unread=0.25, general=0.5)
    styles = [mixture.draw(rng) for _ in range(4000)]
    shares = [sum(not getattr(s, name) for s in styles) / 4000 for name in ("careful", "document", "notes")]
    assert shares == pytest.approx([0.4, 0.25, 0.5], abs=0.03)


# ---- whole trials

@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    build(folder, "smoke", seed=7)
    return folder


@pytest.fixture(scope="module")
def played(shop):
    """solved[mixture][position], and the expert's trials, over the 40 or so sequences of one store."""
    manifest, format, settings = sequences(shop, SHOP, "demos", 3, per_family=12, whole=True), tiny_format(), {}
    with ShopPool(shop) as pool:
        world = CheckedWorld(pool, manifest)
        chains = [s.chain for s in manifest.sequences]
        for name, mixture in {"expert": EXPERT, "hasty": HASTY, "unread": UNREAD, "general": GENERAL_ONLY}.items():
            settings[name] = demonstrate(chains, world, format, LoopSettings(Carry.document, WIDE, 11), reply_to, mixture, 0)
        settings["remarks"] = demonstrate(chains, world, format, LoopSettings(Carry.reflection, WIDE, 11), reply_to, EXPERT, 0)
    return settings


def solved(trials):
    return [sum(t.episodes[k].success for t in trials) / len(trials) for k in range(3)]


def test_only_the_expert_gets_better_from_task_to_task(played):
    first, second, third = solved(played["expert"])
    assert len(played["expert"]) == 32 and 0.35 < first < 0.7 and second > 0.85 and third > 0.9
    for name in ("unread", "general"):
        assert max(solved(played[name])) < 0.75
    assert max(solved(played["hasty"])) < 0.5 and solved(played["hasty"])[0] < first


def test_remarks_carry_what_a_document_carries(played):
    """The same players, the same facts: only how they are written down differs."""
    first, second, third = solved(played["remarks"])
    assert first == solved(played["expert"])[0] and second > 0.85 and third > 0.9
    trial = max(played["remarks"], key=lambda t: len(t.documents[2]))
    one, two = [re.fullmatch(r"(?s).*<remark>(.+)</remark>", c.text)[1] for c in trial.curations]
    assert trial.documents == ["", f"- {one}", f"- {one}\n- {two}"]
    twin = next(t for t in played["expert"] if t.chain == trial.chain)
    assert read_document(trial.documents[2].replace("; ", "\n- ")) == read_document(twin.documents[2])


def test_imitation_sees_the_players_own_tokens_of_both_roles(played):
    format, rows = tiny_format(), examples(played["expert"])
    assert len(rows) == 32 * 5
    for row in rows[:10]:
        own = format.tokenizer.decode([i for i in row["labels"] if i != IGNORED])
        assert "Task:" not in own and "Results:" not in own and (own.startswith("<action>") or own.startswith("I note"))
        assert own.count("<|im_end|>") == own.count("<action>") + own.count("<skill>")
        assert [i for i, label in zip(row["input_ids"], row["labels"], strict=True) if label != IGNORED] == [
            label for label in row["labels"] if label != IGNORED]


def test_equal_seeds_give_equal_demonstrations(shop):
    manifest = sequences(shop, SHOP, "demos", 3, per_family=3)
    chains, mixture = [s.chain for s in manifest.sequences], Mixture(0.5, 0.5, 0.5)
    with ShopPool(shop) as pool:
        runs = [demonstrate(chains, pool, tiny_format(), LoopSettings(Carry.document, WIDE, 11), reply_to, mixture, seed)
                for seed in (0, 0, 1)]
    a, b, c = [[[t.code for e in trial.episodes for t in e.turns] for trial in trials] for trials in runs]
    assert a == b != c


def test_budgets_that_are_too_small_are_an_error_and_no_bad_example(shop):
    manifest = sequences(shop, SHOP, "demos", 3, per_family=3)
    tight = Budgets(max_context=3000, reply_tokens=8, writer_tokens=600, document_tokens=500, trajectory_tokens=2000)
    with ShopPool(shop) as pool:
        settings = LoopSettings(Carry.document, tight, 3)
        trials = demonstrate([manifest.sequences[0].chain], pool, tiny_format(), settings, reply_to, EXPERT, 0)
    with pytest.raises(ValueError, match="the budgets are too small"):
        examples(trials)


def test_the_tokenizer_keeps_names_and_digits_apart(shop):
    manifest = sequences(shop, SHOP, "demos", 3, per_family=3)
    with ShopPool(shop) as pool:
        tokenizer = tokenizer_for([s.chain for s in manifest.sequences], pool, 11, reply_to, EXPERT, 500, 0)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("Fennway protein bar S12")][-3:] == ["S", "1", "2"]
    assert len(tokenizer.encode("<action>click[buy now]</action>")) < 6 and len(tokenizer) <= 500


def test_exercises_can_be_solved_from_their_text_alone():
    pairs = copying_pairs(400, 3)
    assert pairs == copying_pairs(400, 3) != copying_pairs(400, 4) and len({p["text"] for p in pairs}) > 380
    assert [p["kind"] for p in pairs[:7]] == ["list", "document", "note", "option", "match", "verdict", "revise"]
    for pair in pairs:
        shelf = {brand: code for brand, code in re.findall(r"^(\w+) [a-z ]+ (S\d\d)$", pair["text"], re.MULTILINE)}
        known, code, pages = read_document(pair["text"]), pair["code"], FEATURES.findall(pair["text"])
        wanted = re.search(rf"Find me (.*?) (?:{'|'.join(kind[0] for kind in KINDS)}) ", pair["text"])
        if pair["kind"] == "list":
            brand = pair["text"].rpartition("Open: ")[2]
            assert code == f"<action>click[{shelf[brand].lower()}]</action>" and len({c[1] for c in shelf.values()}) == 4
        elif pair["kind"] == "document":
            assert code == f"{wanted[1]}: {known[wanted[1]]}.\n<action>click[{shelf[known[wanted[1]]].lower()}]</action>"
        elif pair["kind"] == "note":
            assert not read_document(code).keys() & known.keys() and read_document(code) == {pages[0][1]: pages[0][0]}
        elif pair["kind"] == "match":
            verdict = "yes" if pages[0][1] == wanted[1] else "no"
            assert code == f"This is {pages[0][1]}, wanted is {wanted[1]}: {verdict}.\n<action>click[< prev]</action>"
        elif pair["kind"] == "verdict":
            options = re.findall(r": ([^,:\n]+)(?:, and|\n)", pair["text"])
            assert code == f"<action>click[{options[0] if pages[0][1] == wanted[1] else '< prev'}]</action>"
        elif pair["kind"] == "revise":
            assert list(read_document(code).items()) == [*known.items(), *((what, brand) for brand, what in pages)]
        else:
            name = pair["text"].rpartition("Option ")[2]
            assert f"{name}: {code[14:-10]}" in pair["text"]
    verdicts = [": yes." in p["code"] for p in pairs if p["kind"] == "match"]
    assert 0.5 < sum(verdicts) / len(verdicts) < 0.75          # half, and a quarter of the rest


def test_texts_hold_no_special_tokens(played):
    found = texts(played["hasty"][:2], tiny_format())
    assert found and not any("<|" in text for text in found) and any("Task: Find me" in text for text in found)
