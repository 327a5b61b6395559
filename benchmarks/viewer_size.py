"""What a page of 10,000 episodes costs: time to make it, its size, and how long a browser takes until it can be used.

    .venvs/main/bin/python benchmarks/viewer_size.py RUN [--episodes 10000]

RUN's chains are repeated under new step numbers (the page compresses parts of 32 chains alone, so that repeats cost in full).
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sagelib import trajectories, viewer  # noqa: E402
from sagelib.pieces import policy_dir  # noqa: E402


def repeated(source: viewer.Source, directory: Path, episodes: int) -> int:
    """Writes the run's chains again and again until there are so many episodes. Returns the bytes."""
    records = [r for file in source.files for r in trajectories.read_records(file)]
    count, last = 0, max(r["step"] or 1 for r in records)
    with open(directory / "episodes.jsonl", "w") as file:
        for n, record in enumerate(itertools.cycle(records)):
            if count >= episodes:
                break
            file.write(json.dumps(record | {"step": (record["step"] or 1) + n // len(records) * last}) + "\n")
            count += len(record["episodes"])
    (directory / "config.json").write_text(json.dumps(source.facts))
    if source.run and policy_dir(source.run):
        os.symlink(policy_dir(source.run).resolve(), directory / "policy")
    return (directory / "episodes.jsonl").stat().st_size


def browser_ms(path: Path, profile: Path) -> str:
    """Milliseconds from the script's start, and from navigation, to the first episode on screen."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return "no chromium here"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom",
               "--virtual-time-budget=60000", f"file://{path}"]
    begun = time.monotonic()
    text = subprocess.run(command, capture_output=True, text=True).stdout
    ready, loaded = (re.search(rf'data-{name}="(\d+)"', text) for name in ("ready", "loaded"))
    if ready is None:
        return "the page was not ready after its time"
    return f"{ready[1]} ms unpacking and drawing, {loaded[1]} ms since navigation (whole browser {time.monotonic() - begun:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        size = repeated(viewer.find(options.run), directory, options.episodes)
        cpu = time.process_time()
        page = viewer.write(directory / "view.html", directory)
        cpu = time.process_time() - cpu
        print(f"{options.episodes} episodes: {size / 1e6:.0f} MB of JSONL -> {page.stat().st_size / 1e6:.1f} MB of HTML, "
              f"made in {cpu:.1f} CPU-seconds; load average now {os.getloadavg()[0]:.1f}", flush=True)
        print(browser_ms(page, directory / "profile"))


if __name__ == "__main__":
    main()
