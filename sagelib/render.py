"""The executed notebooks of a profile's runs as HTML, with an index page: readable in any browser, without Jupyter or network.

    ./workbench render --profile laptop        # runs/rendered/laptop/index.html

Each page is one file that loads nothing and can load nothing (its content security policy says so); pictures are inside it.
nbconvert, which makes them, is part of JupyterLab. Runs in JupyterLab itself leave no executed notebook here.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from sagelib.runs import RunError, list_runs, runs_root
from sagelib.scheduler import minutes

# frames: the viewer's, whose page is inside its tag
POLICY = "default-src 'none'; frame-src about:; img-src data:; font-src data:; style-src 'unsafe-inline'; " \
    "script-src 'unsafe-inline'"
TEMPLATE = ("{% extends 'lab/index.html.j2' %}{% block html_head_js %}"
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' "{% endblock %}"
            "{% block html_head_js_mathjax %}{% endblock %}{% block html_head_js_mermaidjs %}{% endblock %}"
            "{% block body_header %}{{ super() }}{{ resources.top }}{% endblock %}")
STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35em .7em; border-bottom: 1px solid #ddd;
vertical-align: top; } code { font-size: 13px; } .bad { color: #a00; }"""


def render(profile: str, out: Path | None = None) -> tuple[Path, int]:
    """(the index page, the number of notebooks written): a page for each run of the profile that has an executed notebook."""
    found = [r for r in list_runs() if Path(r["directory"]).parent.name == profile]
    if not found:
        raise RunError(f"no run of profile {profile!r} in {runs_root()}. Fix: ./workbench reproduce --profile {profile}")
    out = Path(out or runs_root() / "rendered" / profile)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out} cannot be a folder for the pages: {error.strerror}. Fix: name another one") from None
    rows, written = [], 0
    for record in sorted(found, key=lambda r: (r["notebook"], r["started"])):
        title = notebook_page(record, out / page_name(record))
        written += title is not None
        rows.append(index_row(record, title))
    index = out / "index.html"
    index.write_text(INDEX.format(policy=POLICY, style=STYLE, profile=html.escape(profile), rows="\n".join(rows)))
    return index, written


def page_name(record: dict[str, Any]) -> str:
    """For example 02_sft-0123456789.html."""
    return f"{record['notebook']}-{record['run_id']}.html"


def notebook_page(record: dict[str, Any], path: Path) -> str | None:
    """Writes the run's notebook as one page and returns its title; None when it left no readable notebook."""
    import nbformat  # here: it and nbconvert take a second to load
    from jinja2 import DictLoader
    from nbconvert import HTMLExporter

    try:
        notebook = nbformat.read(Path(record["directory"]) / "executed.ipynb", as_version=4)
    except (OSError, ValueError, nbformat.reader.NotJSONError):
        return None   # never started, gone, or being written at this moment
    top = f'<p style="padding: 0 1em"><a href="index.html">all runs</a> · {html.escape(describe(record))}</p>'
    exporter = HTMLExporter(template_file="page.html.j2", extra_loaders=[DictLoader({"page.html.j2": TEMPLATE})])
    text, _ = exporter.from_notebook_node(notebook, {"top": top, "metadata": {"name": path.stem}})
    path.write_text(text)
    texts = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return next((text.splitlines()[0][2:] for text in texts if text.startswith("# ")), record["notebook"])


def describe(record: dict[str, Any]) -> str:
    """One line: which run it is, how it ended, what it was given."""
    reason = f" ({record['reason']})" if record["reason"] else ""
    return f"run {record['run_id']}, {record['status']}{reason}, started {record['started']}, {given(record) or 'defaults'}"


def given(record: dict[str, Any]) -> str:
    """The parameters that somebody chose, but for the profile."""
    return ", ".join(f"{name} = {value}" for name, value in record["parameters"].items() if name not in ("profile", "missing"))


def index_row(record: dict[str, Any], title: str | None) -> str:
    """The run's line of the index; without a link when there is no page."""
    name = html.escape(title or record["notebook"])
    link = f'<a href="{html.escape(page_name(record))}">{name}</a>' if title is not None else f"{name} (no notebook)"
    status = html.escape(record["status"] + (f": {record['reason']}" if record["reason"] else ""))
    took = minutes(record["seconds"]) if record.get("seconds") else ""
    cells = (link, html.escape(given(record)), f"<code>{html.escape(record['run_id'])}</code>",
             status if record["status"] == "done" else f'<span class="bad">{status}</span>', html.escape(record["started"]), took)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<title>Runs, profile {profile}</title><style>{style}</style></head><body>
<h1>Executed notebooks, profile {profile}</h1>
<table><tr><th>notebook</th><th>parameters</th><th>run</th><th>status</th><th>started (UTC)</th><th>took</th></tr>
{rows}
</table></body></html>
"""
