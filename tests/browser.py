"""A headless Chromium that tests can ask things, over its debugging port on this machine's loopback."""
import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def until(holds: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of ``holds()``; an AssertionError with ``what`` when that takes longer."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.5)
    return value


class Browser:
    """One page. ``profile`` is a new folder for the browser's files."""

    def __init__(self, profile: Path, url: str, size: str = "1400,1000") -> None:
        import websocket  # of jupyter_server
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", f"--window-size={size}",
             "--remote-debugging-address=127.0.0.1", "--remote-debugging-port=0", url], stderr=subprocess.DEVNULL)
        port = profile / "DevToolsActivePort"
        until(lambda: port.exists() and "\n" in port.read_text(), 120, "the browser did not start")
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list", timeout=60))
        page = next(p for p in pages if p["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], suppress_origin=True, timeout=120)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def call(self, method: str, **params: Any) -> dict:
        self.socket.send(json.dumps({"id": 1, "method": method, "params": params}))
        while "id" not in (answer := json.loads(self.socket.recv())):
            pass
        return answer["result"]

    def evaluate(self, script: str) -> Any:
        """The value of a script; a promise is waited for."""
        return self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)["result"].get("value")

    def wait(self, script: str, seconds: float = 120) -> Any:
        """The first true value of the script."""
        return until(lambda: self.evaluate(script), seconds, f"after {seconds} s still not true: {script}")

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
        return path
