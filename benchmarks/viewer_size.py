"""What a page of 10,000 episodes costs: time to make it, its size, and how long a browser takes until it can be used.

    .venvs/main/bin/python benchmarks/viewer_size.py RUN [--episodes 10000]

RUN's episodes are repeated under later steps. The page packs parts of 32 chains alone, so that repeats cost their full size.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sagelib import viewer  # noqa: E402


def repeated(table: dict, parts: list[str], episodes: int) -> tuple[dict, list[str]]:
    """The side of a page with so many episodes: the run's own, again and again, under later steps."""
    step, rows, last = 3 + table["columns"].index("step"), [], len(table["rows"])
    steps = max(row[step] or 1 for row in table["rows"])
    for i in range(episodes):
        row, again = list(table["rows"][i % last]), i // last
        row[0], row[step] = row[0] + again * len(parts), (row[step] or 1) + again * steps
        rows.append(row)
    return table | {"rows": rows}, (parts * (episodes // last + 1))[: rows[-1][0] + 1]


SORT_AND_FILTER = """(() => {
  const t0 = performance.now(); document.querySelector('.heads > span:nth-child(7)').click();
  const t1 = performance.now(); const box = document.querySelector('input[type=search]');
  box.value = 'R>1 called!='; box.oninput();
  const t2 = performance.now();
  return [t1 - t0, t2 - t1].map(Math.round).join(' / ');
})()"""


def browser(path: Path, profile: Path, limit_s: float = 300) -> str:
    """Wall-clock milliseconds in a headless browser until the first episode is on screen, and of sorting and filtering."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return "no chromium here: not opened"
    import websocket  # of jupyter_server

    process = subprocess.Popen([chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                                "--remote-debugging-address=127.0.0.1", "--remote-debugging-port=0", f"file://{path}"],
                               stderr=subprocess.DEVNULL)
    try:
        end, port = time.monotonic() + limit_s, profile / "DevToolsActivePort"
        while not (port.exists() and port.read_text().count("\n")):
            time.sleep(0.2)
            if time.monotonic() > end:
                return "the browser did not start"
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list", timeout=limit_s))
        page = next(p for p in pages if p["type"] == "page")
        socket = websocket.create_connection(page["webSocketDebuggerUrl"], suppress_origin=True, timeout=limit_s)

        def evaluate(script: str) -> Any:
            socket.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {
                "expression": script, "awaitPromise": True, "returnByValue": True}}))
            return json.loads(socket.recv())["result"]["result"].get("value")

        while not (ready := evaluate("document.body && document.body.dataset.loaded")):
            time.sleep(0.5)
            if time.monotonic() > end:
                return "the page was not ready in time"
        unpacked = evaluate("document.body.dataset.ready")
        return f"first episode on screen after {ready} ms (script: {unpacked} ms); sort / filter: {evaluate(SORT_AND_FILTER)} ms"
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=10_000)
    options = parser.parse_args()
    cpu = time.process_time()
    table, parts = viewer.side(viewer.find(options.run))
    cpu = (time.process_time() - cpu) / len(table["rows"])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "view.html"
        page.write_text(viewer.render([repeated(table, parts, options.episodes)]))
        print(f"{len(table['rows'])} episodes, shown as {options.episodes}: {page.stat().st_size / 1e6:.1f} MB of HTML, made in "
              f"{1000 * cpu:.2f} CPU-seconds per 1,000 episodes; load average {os.getloadavg()[0]:.1f}", flush=True)
        print(browser(page, Path(folder) / "profile"))


if __name__ == "__main__":
    main()
