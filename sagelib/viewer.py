"""Episodes of one or two runs as ONE HTML file: a table to sort and filter, and every episode behind it.

    viewer.show(run)                       in a notebook: the page in a frame of its own
    viewer.write("out.html", run_a, run_b) two runs side by side
    ./workbench view RUN [RUN2]            the same from a terminal

The page loads nothing and can load nothing (its content security policy names only its own script). All recorded text
travels as compressed base64 and reaches the document as text nodes only, so that nothing a model wrote can become markup.
The table's rows are one part; details lie in parts of `CHAINS_PER_PART` chains, unpacked when an episode is opened.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sagelib import datasets, trajectories
from sagelib.pieces import Pieces, dumps, load_tokenizer, policy_dir
from sagelib.runs import RunError, list_runs, read_json

CHAINS_PER_PART = 32
HERE = Path(__file__).parent


@dataclass
class Source:
    """Where a side of the page comes from: episode files, and their run's directory if they have one."""

    title: str
    files: list[Path]
    run: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def find(source: Any) -> Source:
    """A `runs.Run`, a run's directory, (the start of) a run id, an episodes file, or a list of them, as a `Source`."""
    if isinstance(source, (list, tuple)):
        if not source:
            raise RunError("an empty list of episodes files. Fix: name at least one episodes*.jsonl")
        return Source(", ".join(Path(f).name for f in source), [_existing(Path(f)) for f in source])
    path = Path(getattr(source, "dir", source))
    if path.suffix == ".jsonl":
        return Source(path.name, [_existing(path)])
    path = run_directory(source)
    files = sorted(path.glob("episodes*.jsonl"))
    if not files:
        raise RunError(f"{path} has no episodes*.jsonl. Fix: name a run of 03_train or 04_evaluate (./workbench runs lists them)")
    given = (read_json(path / "run.json") or {}).get("parameters_seen")   # of a run in JupyterLab, which has no config.json
    return Source(path.name, files, path, read_json(path / "config.json") or given or {})


def run_directory(source: Any) -> Path:
    """The directory of a `runs.Run`, a directory, a run's folder name, or (the start of) its id."""
    path = Path(getattr(source, "dir", source))
    if path.is_dir():
        return path
    found = [r for r in list_runs() if r["run_id"].startswith(str(source)) or Path(r["directory"]).name == str(source)]
    if len(found) != 1:
        what = "fits no recorded run" if not found else f"fits {len(found)} runs"
        raise RunError(f"{str(source)!r} {what} and is no directory or episodes file. Fix: take an id from ./workbench runs")
    return Path(found[0]["directory"])


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise RunError(f"there is no file {path}. Fix: name an episodes*.jsonl below runs/ (./workbench runs lists the runs)")
    return path


class _Families(dict):
    """scenario id -> family, looked up in the world where it is generated here; "" otherwise."""

    def __init__(self, world: str | None) -> None:
        self.world = world

    def __missing__(self, scenario: str) -> str:
        try:
            self[scenario] = datasets.load_expert(datasets.world_dir(self.world or ""), f"{scenario}_1")["family"]
        except (OSError, KeyError, ValueError):
            self[scenario] = ""
        return self[scenario]


def side(source: Source) -> tuple[dict[str, Any], list[str]]:
    """One run for the page: its table (JSON-ready) and its packed details."""
    directory = policy_dir(source.run) if source.run else None
    pieces = Pieces(load_tokenizer(directory) if directory else None)
    families = _Families(source.facts.get("world"))
    name = source.facts.get("credit") or trajectories.credit_of(list(itertools.islice(_records(source), 256)))
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")   # of agents' code, which is only read here
    rows, parts, part = [], [], []
    for group in trajectories.grouped(_records(source)):
        for record, advantages_K in zip(group, trajectories.advantages(group), strict=True):
            rows += [[len(parts), len(part), k, *row] for k, row in
                     enumerate(trajectories.rows_of(record, advantages_K, name, families))]
            part.append([trajectories.detail(record, k, pieces.encode(e["segment"])) for k, e in enumerate(record["episodes"])])
            if len(part) == CHAINS_PER_PART:
                parts.append(pack(part))
                part = []
    if part:
        parts.append(pack(part))
    if not rows:
        raise RunError(f"{', '.join(map(str, source.files))}: no whole episode in it yet. Fix: wait for the first step to end")
    facts = {k: v for k, v in source.facts.items() if isinstance(v, (str, int, float, bool))}
    return {"title": source.title, "facts": facts, "credit": name, "columns": trajectories.COLUMNS, "rows": rows,
            "pieces": pieces.texts, "tokens": directory is not None}, parts


def _records(source: Source) -> Iterator[dict]:
    return itertools.chain.from_iterable(map(trajectories.read_records, source.files))


def pack(value: Any) -> str:
    """gzip and base64 of the value's JSON: letters, digits, + / = only. Equal input gives equal text."""
    return base64.b64encode(gzip.compress(dumps(value), 6, mtime=0)).decode("ascii")


def page(*sources: Any) -> str:
    """The whole HTML page (ASCII) of one or two runs; see `find` for what a source may be."""
    if len(sources) not in (1, 2):
        raise RunError(f"{len(sources)} runs given; the viewer shows one, or two side by side. Fix: name one or two")
    return render([side(find(source)) for source in sources])


def render(sides: list[tuple[dict[str, Any], list[str]]]) -> str:
    """The page of what `side` gave for each run."""
    script, css = (HERE / "viewer.js").read_text(), (HERE / "viewer.css").read_text()
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    blocks = [("head", pack([table for table, _ in sides]))]
    blocks += [(f"part-{i}-{n}", text) for i, (_, parts) in enumerate(sides) for n, text in enumerate(parts)]
    data = "\n".join(f'<script type="text/plain" id="{key}">{text}</script>' for key, text in blocks)
    title = html.escape(" | ".join(table["title"] for table, _ in sides)).encode("ascii", "xmlcharrefreplace").decode()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'">
<title>{title}</title>
<style>{css}</style></head><body>
<noscript>This page needs JavaScript: it unpacks its episodes in the browser (nothing is loaded from anywhere).</noscript>
<div id="app"><p class="note">unpacking ...</p></div>
{data}
<script>{script}</script></body></html>
"""


def write(path: Path | str, *sources: Any) -> Path:
    """The page is in the file afterwards, or the file is as it was before."""
    path = Path(path)
    if not path.parent.is_dir():
        raise RunError(f"there is no folder {path.parent} to write {path.name} to. Fix: make it, or name another with --out")
    text = page(*sources)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    return temporary.replace(path)


def show(*sources: Any, height: int = 800) -> Any:
    """The page for a notebook's output cell: in a sandboxed frame, so that it cannot reach the notebook around it."""
    from IPython.display import HTML  # here: the command line needs no IPython
    frame = html.escape(page(*sources), quote=True)
    style = f"width:100%;height:{int(height)}px;border:1px solid #ccc"
    return HTML(f'<div><iframe sandbox="allow-scripts" style="{style}" srcdoc="{frame}"></iframe></div>')
