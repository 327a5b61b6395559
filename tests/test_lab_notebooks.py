"""JupyterLab in a real browser: the tour opens, all its cells run, and the viewer is there."""
import json
import os
import re
import subprocess
import sys

import pytest
from browser import CHROMIUM, Browser, until
from conftest import unavailable

from sagelib.runs import ROOT

pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(900),
              pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: chromium): JupyterLab was not opened")]
PROFILES = {"smoke": "smoke", "laptop": "mini"}   # profile -> its world
COUNT = """(() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget, model = panel && panel.content && panel.content.model;
  if (!model || !model.cells || !model.cells.length) return null;
  const code = Array.from(model.cells).filter(c => c.type === 'code');
  return {code: code.length, run: code.filter(c => c.executionCount).length,
          errors: code.filter(c => c.outputs.toJSON().some(o => o.output_type === 'error')).length};
})()"""


@pytest.fixture
def lab(tmp_path):
    """Address of a JupyterLab on loopback whose only notebook is the tour, in the profile whose world is here."""
    profile = next((p for p, world in PROFILES.items() if (ROOT / "data" / world / "datasets.json").exists()), None)
    if profile is None:
        unavailable("no world is generated; ./workbench setup makes it")
    text = (ROOT / "notebooks" / "00_tour.ipynb").read_text()
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "00_tour.ipynb").write_text(text.replace('profile = \\"laptop\\"', f'profile = \\"{profile}\\"'))
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "sagelib", "language": "python"}))
    places = {"SAGELIB_RUNS": "runs", "JUPYTER_PATH": "jupyter", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data"}
    env = os.environ | {name: str(tmp_path / place) for name, place in places.items()} | {"PYTHONPATH": str(ROOT)}
    log = tmp_path / "lab.log"   # not a pipe: one that nobody empties stops the server
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
         "--LabApp.expose_app_in_browser=True", f"--ServerApp.root_dir={folder}", "--LabApp.news_url="],
        env=env, stdout=subprocess.DEVNULL, stderr=log.open("w"))
    try:
        address = until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)", log.read_text()), 240, "no JupyterLab")
        yield f"http://127.0.0.1:{address[1]}/lab/tree/00_tour.ipynb?token={address[2]}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def test_the_tour_runs_in_jupyterlab_and_shows_the_viewer(lab, tmp_path):
    with Browser(tmp_path / "profile", lab) as browser:
        browser.wait(f"({COUNT} || {{code: 0}}).code > 5", 240)   # a panel that is still loading has one empty cell
        cells = browser.evaluate(COUNT)
        assert cells["run"] == 0
        browser.wait("window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'", 240)
        browser.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)")
        browser.wait(f"(() => {{ const c = {COUNT}; return c && (c.errors || c.run === c.code); }})()", 400)
        assert browser.evaluate(COUNT) == {"code": cells["code"], "run": cells["code"], "errors": 0}
        browser.evaluate("document.querySelector('iframe[sandbox][srcdoc]')?.scrollIntoView()")
        frames = "document.querySelectorAll('.jp-OutputArea iframe[sandbox=\"allow-scripts\"][srcdoc]').length"
        assert browser.wait(frames, 60) == 1
        assert browser.screenshot(tmp_path / "lab.png").stat().st_size > 10_000
