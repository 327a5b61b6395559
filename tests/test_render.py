"""Executed notebooks as HTML: all runs are in the index, nothing is loaded from elsewhere, no output becomes markup by itself."""
import json
from html.parser import HTMLParser

import nbformat.v4 as v4
import pytest
from run_maker import make_run

from sagelib import cli, render, runs

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOSTILE = "<script>document.title = 'owned'</script>"


class Page(HTMLParser):
    """Text of a page, and every address in it that a browser would load or that can be followed."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.tags, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        self.loaded += [found[name] for name in ("src", "data", "srcset") if name in found]
        if tag == "link":
            self.loaded.append(found.get("href"))
        if tag == "a":
            self.links.append(found.get("href"))

    def handle_data(self, data):
        self.text += data


def notebook(path):
    """What the runner leaves: a title, a printed text, a picture."""
    outputs = [v4.new_output("stream", name="stdout", text=f"{HOSTILE}\n42 tasks\n"),
               v4.new_output("display_data", data={"image/png": PIXEL, "text/plain": "<Figure>"})]
    cells = [v4.new_markdown_cell("# 03 Train: a title\n\n$A = R - m$"), v4.new_code_cell("print(1)", outputs=outputs)]
    path.write_text(json.dumps(v4.new_notebook(cells=cells)))


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Three runs of smoke (done, failed, without a notebook) and one of another profile."""
    monkeypatch.setenv("SAGELIB_RUNS", str(tmp_path / "runs"))
    for profile, name, status in (("smoke", "a" * 10, "done"), ("smoke", "b" * 10, "failed"), ("smoke", "c" * 10, "died"),
                                  ("laptop", "d" * 10, "done")):
        place = make_run(tmp_path / "runs" / profile / f"03_train-{name}", run_id=name, status=status)
        record = json.loads((place / "run.json").read_text())
        record["reason"] = "" if status == "done" else f"ValueError: {HOSTILE}"
        (place / "run.json").write_text(json.dumps(record))
        if status != "died":
            notebook(place / "executed.ipynb")
    return tmp_path


def test_every_run_of_the_profile_is_in_the_index(recorded, capsys):
    assert cli.main(["render", "--profile", "smoke", str(recorded / "out")]) == 0
    assert "index.html (2 notebooks)" in capsys.readouterr().out
    assert {p.name for p in (recorded / "out").iterdir()} == {
        "index.html", "03_train-aaaaaaaaaa.html", "03_train-bbbbbbbbbb.html"}
    index = Page((recorded / "out" / "index.html").read_text())
    assert index.links == ["03_train-aaaaaaaaaa.html", "03_train-bbbbbbbbbb.html"] and index.loaded == []
    assert index.text.count("03 Train: a title") == 2 and "03_train (no notebook)" in index.text
    assert "seed = 3, method = sage" in index.text and "1:00" in index.text
    assert f"failed: ValueError: {HOSTILE}" in index.text and "script" not in index.tags


def test_a_page_has_the_outputs_and_loads_nothing(recorded):
    index, written = render.render("smoke")
    assert index == runs.runs_root() / "rendered" / "smoke" / "index.html" and written == 2
    text = (index.parent / "03_train-aaaaaaaaaa.html").read_text()
    page = Page(text)
    assert "42 tasks" in page.text and HOSTILE in page.text and "<script>document.title" not in text
    assert page.loaded == [f"data:image/png;base64,{PIXEL}"]
    assert "run aaaaaaaaaa, done, started 2026-01-01T00:00:00Z, seed = 3, method = sage" in page.text
    assert page.links[0] == "index.html" and f'content="{render.POLICY}"' in text and "http:" not in render.POLICY
    assert "cdn" not in text.lower()
    assert HOSTILE in Page((index.parent / "03_train-bbbbbbbbbb.html").read_text()).text   # its reason, as text
    assert runs.list_runs()[0]["run_id"] == "a" * 10 and len(runs.list_runs()) == 4   # the pages are no runs


def test_a_half_written_notebook_is_listed_without_a_page(recorded):
    (recorded / "runs" / "smoke" / "03_train-aaaaaaaaaa" / "executed.ipynb").write_text('{"cells": [')
    assert render.render("smoke", recorded / "out")[1] == 1
    assert not (recorded / "out" / "03_train-aaaaaaaaaa.html").exists()


def test_what_cannot_be_rendered_is_said(recorded, monkeypatch, capsys):
    (recorded / "file").write_text("")
    assert cli.main(["render", "--profile", "smoke", str(recorded / "file")]) == 1
    assert "cannot be a folder for the pages: File exists" in capsys.readouterr().err
    monkeypatch.setenv("SAGELIB_RUNS", str(recorded / "none"))
    assert cli.main(["render"]) == 1
    assert "no run of profile 'laptop'" in capsys.readouterr().err
