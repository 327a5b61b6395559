"""Run records: what a run was, whether it can be trusted, and the handle that a notebook writes through.

A run is one execution of one notebook in runs/<profile>/<notebook>-<run id>/:
    run.json        parameters, versions, status (written by the runner, whole or not at all)
    metrics.jsonl   one JSON object per line, readable while the notebook runs
    progress.json   where it is now
    results.json, end.json   written by finish(): the numbers, and the mark that the notebook came to its end
    executed.ipynb, log.txt, and whatever the library keeps there (results/, checkpoints)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class RunError(RuntimeError):
    """A run that cannot be opened, found or trusted; the text says which and what to do."""


def runs_root() -> Path:
    """Where the runs are: $SAGELIB_RUNS, else runs/ of this checkout. Resolved, as what a run declares outside its directory
    (figures/) is named relative to it, and ".." behind a symbolic link leads elsewhere."""
    return Path(os.environ.get("SAGELIB_RUNS") or ROOT / "runs").resolve()


def now() -> str:
    """The time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# ---------------------------------------------------------------- files

def plain(value: Any) -> Any:
    """The value as JSON has it: numpy and torch scalars become numbers, paths text, NaN and infinity null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and callable(value.item):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """The file holds the value afterwards, or what it held before: never half of it."""
    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any | None:
    """The value in the file, None when there is none (yet)."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_metrics(path: Path) -> list[dict]:
    """Rows of a metrics.jsonl (the file or its run's directory), also while it grows: a torn last line is left out."""
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.exists():
        return []
    whole, _, _torn = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def content_hash(path: Path) -> str:
    """sha256 of a file, or of a directory's files with their names. FileNotFoundError when there is neither."""
    if not path.is_dir():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    sha = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        sha.update(f"{file.relative_to(path).as_posix()}\0{content_hash(file)}\n".encode())
    return sha.hexdigest()


# ---------------------------------------------------------------- reading runs

def world_record(name: str) -> dict | None:
    """{name, hash} of a generated world, None when it was not generated."""
    data = read_json(ROOT / "data" / name / "world.json")
    return {"name": name, "hash": data["hash"]} if data else None


def lock(directory: Path) -> int | None:
    """A descriptor that holds the run's lock until it is closed (or its process ends), None when another has it."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def is_locked(directory: Path) -> bool:
    """True while a process works on the run. A lock of a process that is gone does not count."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def read_run(directory: Path) -> dict:
    """The record of a run with its directory; "running" becomes "died" when nobody works on it any more."""
    record = read_json(directory / "run.json")
    if record is None:
        raise RunError(f"{directory} holds no run (no readable run.json)")
    if record["status"] == "running" and not is_locked(directory):
        record |= {"status": "died", "reason": "the process that ran it is gone without a word"}
    return record | {"directory": str(directory)}


def list_runs(root: Path | None = None) -> list[dict]:
    """All records, oldest first."""
    records = [read_run(p.parent) for p in (root or runs_root()).glob("*/*/run.json") if read_json(p) is not None]
    return sorted(records, key=lambda r: (r["started"], r["run_id"]))


def fault(directory: Path) -> str | None:
    """Why the run may not be used, None when it is done and every artifact is there and unchanged."""
    if not (directory / "run.json").exists():
        return "it was never run"
    record = read_run(directory)
    if record["status"] != "done":
        return f"it is {record['status']}" + (f": {record['reason']}" if record["reason"] else "")
    for name, sha in record["artifacts"].items():
        path = directory / name
        if not path.exists():
            return f"its artifact {name} is gone"
        if content_hash(path) != sha:
            return f"its artifact {name} was changed after the run"
    return None


def find_done(notebook: str, profile: str, seed: int | None = None, **where: Any) -> list[Path]:
    """Directories of usable runs of a notebook, newest first. A run without seed fits every seed."""
    found = [r for r in list_runs() if r["notebook"] == notebook and r["profile"] == profile
             and (seed is None or r["seed"] in (seed, None)) and _fits(r, where)]
    return [Path(r["directory"]) for r in reversed(found) if fault(Path(r["directory"])) is None]


def _fits(record: dict, where: Mapping[str, Any]) -> bool:
    return all(record["parameters"].get(name) == value for name, value in where.items())


# ---------------------------------------------------------------- the handle inside a notebook

class Run:
    """What a notebook writes through. `dir` is the run's directory, `results_dir` a place for its files."""

    def __init__(self, directory: Path, record: dict, inputs: list[dict] | None) -> None:
        self.dir, self.record, self._inputs = directory, record, inputs
        self.results_dir = directory / "results"
        self.results_dir.mkdir(parents=True, exist_ok=True)
        self._artifacts: dict[str, Path] = {}
        self._first: tuple[float, int] | None = None
        _drop_torn_line(directory / "metrics.jsonl")

    @property
    def run_id(self) -> str:
        """The run's id, for tables."""
        return self.record["run_id"]

    def log(self, **metrics: Any) -> None:
        """Appends one row to metrics.jsonl, on disk when this returns. NaN and infinity become null."""
        line = json.dumps(plain({"time": round(time.time(), 3)} | metrics), allow_nan=False)
        with open(self.dir / "metrics.jsonl", "a") as file:
            file.write(line + "\n")

    def rewind(self, step: int) -> None:
        """Drops the rows after `step`: for code that goes on from a checkpoint of that step."""
        rows = [r for r in read_metrics(self.dir) if r.get("step") is None or r["step"] <= step]
        temporary = self.dir / ".metrics.new"
        temporary.write_text("".join(json.dumps(r) + "\n" for r in rows))
        temporary.replace(self.dir / "metrics.jsonl")

    def progress(self, done: int, total: int, text: str = "") -> None:
        """What the terminal shows for this run from now on; the time left is reckoned from the first call."""
        self._first = self._first or (time.time(), done)
        since, first = self._first
        left = (time.time() - since) * (total - done) / (done - first) if done > first else None
        write_json(self.dir / "progress.json", {"done": done, "total": total, "text": text, "left_s": left})

    def artifact(self, path: Path | str) -> Path:
        """Declares a file or directory of this run; finish() insists that it exists and records its hash."""
        path = Path(path) if Path(path).is_absolute() else self.dir / path
        self._artifacts[os.path.relpath(path, self.dir)] = path
        return path

    def inputs(self, notebook: str, **where: Any) -> list[Path]:
        """Directories of the runs of another notebook that this one builds on (parameters as in `where`)."""
        if self._inputs is None:
            same_seed = find_done(notebook, self.record["profile"], self.record["seed"], **where)
            return same_seed or find_done(notebook, self.record["profile"], **where)   # of this seed, else of any
        return [Path(r["directory"]) for r in self._inputs if r["notebook"] == notebook and _fits(r, where)]

    def input(self, notebook: str, **where: Any) -> Path:
        """The one such directory (in JupyterLab the newest); RunError says how to get it when there is none."""
        found = self.inputs(notebook, **where)
        if not found:
            raise RunError(f"no finished run of {notebook} {where or ''} for profile {self.record['profile']!r}, seed "
                           f"{self.record['seed']}. Fix: ./workbench reproduce --profile {self.record['profile']} "
                           f"--only {notebook}")
        if len(found) > 1 and self._inputs is not None:
            raise RunError(f"{len(found)} input runs of {notebook} fit {where}: name a parameter that tells them apart")
        return found[0]

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes results.json and the end mark. Call it once, in the last cell: without it a run is not done."""
        missing = [name for name, path in self._artifacts.items() if not path.exists()]
        if missing:
            raise RunError(f"declared but not there: {', '.join(missing)}")
        write_json(self.dir / "results.json", results)
        self.artifact("results.json")
        hashes = {name: content_hash(path) for name, path in self._artifacts.items()}
        write_json(self.dir / "end.json", {"time": now(), "artifacts": hashes})
        if self.record.get("interactive"):
            self.record |= {"status": "done", "ended": now(), "artifacts": hashes}
            write_json(self.dir / "run.json", self.record)


def _drop_torn_line(path: Path) -> None:
    """Cuts what a killed process left of its last line, so that appending does not glue two rows together."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def open_run(cfg: Any = None) -> Run:
    """The run this notebook executes in; in JupyterLab a new one under runs/interactive/. `cfg` is recorded."""
    seen = cfg.model_dump(mode="json") if hasattr(cfg, "model_dump") else dict(cfg or {})
    if "SAGELIB_RUN" in os.environ:
        directory = Path(os.environ["SAGELIB_RUN"])
        write_json(directory / "config.json", seen)
        return Run(directory, read_run(directory), json.loads(os.environ["SAGELIB_INPUTS"]))
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "notebook")).stem
    record = {"run_id": secrets.token_hex(5), "notebook": notebook, "profile": seen.get("profile", "laptop"),
              "parameters": seen, "parameters_seen": seen, "seed": seen.get("seed"), "interactive": True,
              "world": world_record(seen["world"]) if seen.get("world") else None, "started": now(),
              "status": "running", "reason": "", "artifacts": {}, "pid": os.getpid()}
    directory = runs_root() / "interactive" / f"{notebook}-{record['run_id']}"
    lock(directory)   # kept open on purpose: this kernel holds it until it ends
    write_json(directory / "run.json", record)
    return Run(directory, record, None)
