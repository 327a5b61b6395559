"""The viewer: what a row says, what an episode's detail holds, that nothing recorded can become markup, and a real browser."""
import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess

import pytest
from run_maker import ADD, HOSTILE, RETURNS, make_run, play

from sagelib import cli, pieces, trajectories, viewer
from sagelib.credit import CREDIT, chain_returns
from sagelib.play import chain_record
from sagelib.runs import RunError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "smoke" / "03_train-0123456789")


@pytest.fixture(scope="module")
def records(run):
    return list(trajectories.read_records(run / "episodes.jsonl"))


def rows(record, A=(None, None), name="skill_integrated"):
    return [dict(zip(trajectories.COLUMNS, row, strict=True)) for row in trajectories.rows_of(record, A, name, {"s": "notes"})]


def unpack(page, key):
    text = re.search(f'<script type="text/plain" id="{key}">([A-Za-z0-9+/=]*)</script>', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(text)))


# ---- rows

@pytest.mark.parametrize("name", CREDIT)
def test_returns_from_the_record_are_those_of_training(name):
    for run in play():
        assert trajectories.returns(json.loads(json.dumps(chain_record(run, []))), name) == chain_returns(run, CREDIT[name])


def test_parts_add_up_to_the_return(records):
    for record, R_K in zip(records[:3], RETURNS, strict=True):
        assert record["returns"] == R_K
        for row, R in zip(rows(record), R_K, strict=True):
            assert row["R"] == R == row["outcome"] + row["penalty"] + row["generation"] + row["usage"] + row["chain"]
    first, second = rows(records[0])
    assert (first["outcome"], first["generation"], first["usage"]) == (1, 1, 0)
    assert (second["outcome"], second["generation"], second["usage"], second["called"]) == (1, 0, 1, "add")
    lost = rows(records[1])[1]
    assert (lost["outcome"], lost["penalty"], lost["r"], lost["stop"]) == (0, -1, 0.5, "no_code")
    whole = rows(records[0], name="chain")
    assert [row["chain"] for row in whole] == [1, 1] and [row["usage"] for row in whole] == [0, 0]


def test_advantages_are_those_of_the_group_and_empty_without_returns(records):
    groups = list(trajectories.grouped(records))
    assert [len(g) for g in groups] == [3, 3]
    wanted = [[1.0, 4 / 3], [-1.0, -5 / 3], [0.0, 1 / 3]]
    assert trajectories.advantages(groups[0]) == [pytest.approx(row) for row in wanted]
    evaluated = [r | {"returns": [None, None]} for r in groups[0]]
    assert trajectories.advantages(evaluated) == [[None, None]] * 3
    assert rows(evaluated[0])[0]["R"] is None and rows(evaluated[0])[0]["outcome"] == 1


def test_the_credit_is_found_from_the_returns(records):
    assert trajectories.credit_of(records) == "skill_integrated"
    assert trajectories.credit_of([r | {"returns": trajectories.returns(r, "chain")} for r in records]) == "chain"
    assert trajectories.credit_of([r | {"returns": [None, None]} for r in records]) is None


def test_rows_hold_family_and_counts(records):
    row = rows(records[0])[1]
    assert (row["step"], row["family"], row["task"], row["position"], row["copy"]) == (1, "notes", "s_2", 2, 1)
    assert row["turns"] == 1 and row["tokens"] == sum(records[0]["episodes"][1]["segment"]["own_mask_T"]) > 0


# ---- details

def test_calls_of_a_detail_are_those_that_were_counted(records):
    for record in records:
        for episode in record["episodes"]:
            counted = {name for turn in trajectories.calls(episode) for name, _, counts in turn if counts}
            assert counted == set(episode["skills_called"])
    assert trajectories.calls(records[0]["episodes"][1]) == [[["add", 2, True]]]


def test_a_failed_call_is_shown_and_does_not_count():
    turns = [{"code": "add(1)", "error": "TypeError"}, {"code": "x = add(1)\nadd(x)", "error": None},
             {"code": "def add(): pass", "error": None}, {"code": "add()", "error": None}]
    assert trajectories.calls({"turns": turns, "skills_shown": ["add"], "stop": "completed"}) == [
        [["add", 1, False]], [["add", 1, True], ["add", 2, True]], [], []]


def test_library_before_and_after_with_a_diff(records):
    first, second = (trajectories.detail(records[2], k, {}) for k in (0, 1))
    assert first["before"] == {} and [d[:2] for d in first["diff"]] == [["add", "new"]]
    assert second["before"]["add"] == ADD.strip() and [d[:2] for d in second["diff"]] == [["add", "changed"]]
    assert [line for line in second["diff"][0][2] if line[0] != " "] == ["+    return text"]
    assert trajectories.library_diff({"f": "x"}, {}) == [["f", "gone", ["-x"]]]


def test_pieces_give_the_text_back_and_bytes_of_one_character_stay_together(run, records):
    cutter = pieces.Pieces(pieces.load_tokenizer(run / "policy"))
    for episode in records[1]["episodes"]:
        cut = cutter.encode(episode["segment"])
        text = "".join(cutter.texts[i] for i in cut["piece"])
        assert text == cutter.tokenizer.decode(episode["segment"]["completion_ids"], skip_special_tokens=False)
        assert "\ufffd" not in text and sum(cut["own"]) == len(cut["piece"])
        assert sum(cut["own"][1::2]) == len(cut["p"]) == sum(episode["segment"]["own_mask_T"])
        own = [i for i, m in zip(episode["segment"]["completion_ids"], episode["segment"]["own_mask_T"], strict=True) if m]
        assert own == [i for turn in episode["turns"] for i in turn["token_ids"]]
    assert cut["p"][:2] == [99, 98]


# ---- the page

def test_the_page_has_every_episode_and_no_recorded_text_in_its_markup(run, tmp_path):
    page = viewer.page(run)
    page.encode("ascii")
    assert HOSTILE not in page and page.count("</script>") == page.count("<script") == 3
    head = unpack(page, "head")
    assert len(head[0]["rows"]) == 12 and head[0]["credit"] == "skill_integrated" and head[0]["tokens"]
    detail = unpack(page, "part-0-0")[1][0]
    assert HOSTILE in detail["turns"][0]["observation"]
    script = page[page.rindex("<script>") + 8: page.rindex("</script>")]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in page
    assert "default-src 'none'" in page and not re.search(r"""(src|href)\s*=|https?:|innerHTML|insertAdjacent|\beval\b""", script)
    assert viewer.page(run) == page   # equal input, equal bytes


def test_lone_surrogates_and_nan_do_not_break_the_page(run, records, tmp_path):
    record = json.loads(json.dumps(records[0]))
    record["episodes"][0]["turns"][0]["observation"] = "\ud800</script>"
    record["episodes"][0]["segment"]["logprobs_T"][0] = float("nan")
    record["episodes"][0]["turns"][0]["seconds"] = float("inf")
    (tmp_path / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    page = viewer.page(tmp_path / "episodes.jsonl")
    turn = unpack(page, "part-0-0")[0][0]["turns"][0]
    assert turn["observation"] == "\ud800</script>" and turn["seconds"] is None


def test_without_a_tokenizer_the_page_says_so(tmp_path):
    page = viewer.page(make_run(tmp_path / "a", tokenizer=False))
    assert unpack(page, "head")[0]["tokens"] is False and "piece" not in unpack(page, "part-0-0")[0][0]


def test_a_torn_last_line_is_left_out_and_a_wrong_file_is_named(run, tmp_path):
    text = (run / "episodes.jsonl").read_text()
    (tmp_path / "torn.jsonl").write_text(text[:-20])
    assert len(unpack(viewer.page(tmp_path / "torn.jsonl"), "head")[0]["rows"]) == 10
    (tmp_path / "wrong.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(RunError, match="wrong.jsonl, line 1 is no recorded chain"):
        viewer.page(tmp_path / "wrong.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(RunError, match="no whole episode"):
        viewer.page(tmp_path / "empty.jsonl")


def test_sources_that_do_not_exist_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path))
    make_run(tmp_path / "smoke" / "03_train-aaa", run_id="aaa", tokenizer=False)
    assert viewer.find("aaa").run == tmp_path / "smoke" / "03_train-aaa" == viewer.find("03_train-aaa").run
    (tmp_path / "smoke" / "03_train-aaa" / "config.json").unlink()
    assert viewer.find("aaa").facts["credit"] == "skill_integrated"   # as run.json has it
    wrongs = {"zzz": "fits no recorded run", tmp_path: r"no episodes\*.jsonl", tmp_path / "x.jsonl": "there is no file"}
    for wrong, words in wrongs.items():
        with pytest.raises(RunError, match=words):
            viewer.find(wrong)
    with pytest.raises(RunError, match="name one or two"):
        viewer.page()
    with pytest.raises(RunError, match="an empty list"):
        viewer.page([])
    with pytest.raises(RunError, match="there is no folder"):
        viewer.write(tmp_path / "no" / "x.html", "aaa")


def test_show_is_a_sandboxed_frame_without_any_markup_of_the_run(run):
    text = viewer.show(run, height=500).data
    assert text.count("<iframe") == 1 and 'sandbox="allow-scripts"' in text and "height:500px" in text
    inner = re.search(r'srcdoc="([^"]*)"', text)[1]
    assert "<" not in inner and inner.startswith("&lt;!doctype html&gt;")


def test_the_command_writes_the_file(run, tmp_path, capsys):
    out = tmp_path / "two.html"
    assert cli.main(["view", str(run), str(run / "episodes.jsonl"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{out} ({round(out.stat().st_size / 1000)} kB): open" in said and len(unpack(out.read_text(), "head")) == 2
    assert [cli.size(n) for n in (1, 37_499, 999_499, 999_500, 1_250_000)] == ["1 kB", "37 kB", "999 kB", "1.0 MB", "1.2 MB"]
    assert cli.main(["view", "no-such-run"]) == 1
    assert "fits no recorded run" in capsys.readouterr().err


# ---- a browser

def dom(path, place, tmp):
    """What a browser made of the page, without the page's own script and data."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp}",
               "--virtual-time-budget=20000", "--dump-dom", f"file://{path}{place}"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True).stdout
    return text[text.index("<body"):text.index('<script type="text/plain"')]


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: chromium): no browser opened the page")


@needs_browser
def test_a_browser_shows_table_turns_tokens_and_library(run, tmp_path):
    path = viewer.write(tmp_path / "two.html", run, run)
    body = dom(path, "#0.3", tmp_path / "profile")   # the fourth row: copy 2, task 2
    assert re.search(r'<body[^>]* data-ready="\d+"', body) and "data-owned" not in body and "The viewer stopped" not in body
    assert body.count('<section class="pane"') == 2 and body.count("12 of 12 episodes") == 2
    assert body.count('class="row') == 24 and "<img" not in body
    assert "R = outcome 0 + penalty -1 = -1" in body and "(teaches nothing)" not in body
    assert 'class="own"' in body and "rgba(220, 60, 40" in body
    body = dom(path, "#1.1", tmp_path / "profile2")
    assert "calls add (line 2)" in body and '<span class="call">add(\'b\')</span>' in body and "rgba(30, 160, 70" in body
    assert body.count("before: 1 skills") == 2   # the other side follows to the same task


@needs_browser
def test_a_browser_filters_and_never_runs_recorded_text(run, tmp_path):
    path = viewer.write(tmp_path / "one.html", run)
    assert "1 of 12 episodes" in dom(path, "#?stop=no_code%20step=2", tmp_path / "profile")
    body = dom(path, "#0.2", tmp_path / "profile2")   # its block printed markup
    assert "&lt;img src=x onerror" in body and "<img" not in body and "data-owned" not in body
