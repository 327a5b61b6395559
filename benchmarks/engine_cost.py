"""CPU seconds of one engine episode, split in its parts, beside the bare engine on the same tasks.

    .venvs/main/bin/python benchmarks/engine_cost.py --world data/mini --tasks 9 --csv cost.csv

Plays the demonstrations of the first tasks of each way a value is found (direct, note, text), question and action.
Three ways: through the socket (`env`: fork server, sandbox, judge), and in one warm process that opens, executes and
evaluates, with the engine as it is (`bare`) and with sagelib/engine/speed.py (`bare, patched`). CPU time, not wall time:
other work on the machine changes it little. A task's opening is shared by its group. The last column is the total of `env`
over that of the row.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from sagelib.appworld import EnginePool  # noqa: E402
from sagelib.expert import expert_replies  # noqa: E402
from sagelib.skills import extract_code  # noqa: E402

PARTS = ("open", "steps", "judge", "close")


def turns(expert: dict) -> list[str]:
    """The demonstration of one task as the blocks of code that an agent would send."""
    return [extract_code(text) for text, _ in expert_replies(expert, set(), "plain")]


def choose(world: Path, number: int) -> dict[str, list[str]]:
    """Task id -> turns; the kinds of task take turns, so that a small number still has each."""
    kinds: dict[tuple, list] = {}
    for file in sorted((world / "judge" / "data" / "tasks").glob("*/ground_truth/expert.json")):
        expert = json.loads(file.read_text())
        kind = (expert["answer"] is None, expert["family"].rsplit(".", 1)[1])
        kinds.setdefault(kind, []).append((file.parts[-3], turns(expert)))
    picked: dict[str, list[str]] = {}
    while len(picked) < number and any(kinds.values()):
        for kind in sorted(kinds):
            if kinds[kind] and len(picked) < number:
                picked.update([kinds[kind].pop(0)])
    return picked


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process, its living descendants, and all that were reaped below it."""
    seconds, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            for thread in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (thread / "children").read_text().split())
        except OSError:  # it ended while we looked; its parent's next reading has it
            continue
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def env_cost(world: Path, tasks: dict[str, list[str]], copies: int) -> Counter:
    """CPU seconds per episode and part, through the pool; client included."""
    spent: Counter = Counter()
    with EnginePool(world) as pool:

        def measured(part: str, action):
            before = cpu_of_tree(os.getpid())
            result = action()
            spent[part] += cpu_of_tree(os.getpid()) - before
            return result

        for task, blocks in tasks.items():
            [group] = measured("open", lambda task=task: pool.open([(task, copies)]))
            for block in blocks:
                measured("steps", lambda block=block, group=group: pool.step([(one, block) for one in group]))
            outcomes = measured("judge", lambda group=group: pool.judge(group))
            measured("close", lambda group=group: pool.close(group))
            assert all(outcome.success for outcome in outcomes), (task, outcomes)
    return Counter({part: value / (len(tasks) * copies) for part, value in spent.items()})


BARE = """
import json, os, shutil, sys, time
sys.path.insert(0, sys.argv[1])
tasks, fast, scratch, repeats = json.loads(sys.argv[2]), sys.argv[3] == "fast", sys.argv[4], int(sys.argv[5])
sys.stdout = open(os.devnull, "w")
if fast:
    import speed
    speed.patch()
from appworld import AppWorld
spent = dict.fromkeys(("open", "steps", "judge", "close"), 0.0)
def measured(part, action):
    before = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
    result = action()
    spent[part] += time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) - before
    return result
def play(task, blocks):
    world = measured("open", lambda: AppWorld(task_id=task, experiment_name=scratch, timeout_seconds=9))
    for block in blocks:
        measured("steps", lambda: (world.execute(block), world.task_completed()))
    assert measured("judge", world.evaluate).success
    measured("close", world.close)
for task, blocks in tasks.items():  # the first use of everything is not counted
    play(task, blocks)
spent = dict.fromkeys(spent, 0.0)
for task, blocks in list(tasks.items()) * repeats:
    play(task, blocks)
os.write(2, b"RESULT" + json.dumps({k: v / len(tasks) / repeats for k, v in spent.items()}).encode())
os._exit(0)
"""


def bare_cost(world: Path, tasks: dict[str, list[str]], fast: bool, scratch: Path, repeats: int) -> Counter:
    """CPU seconds per episode and part in one warm process of the engine: open, execute, evaluate, close."""
    python = ROOT / ".venvs" / "appworld" / "bin" / "python"
    root = str((world / "judge").resolve())
    environment = os.environ | {"APPWORLD_ROOT": root, "PYTHONWARNINGS": "ignore", "IPYTHONDIR": str(scratch)}
    words = [ROOT / "sagelib" / "engine", json.dumps(tasks), "fast" if fast else "plain", scratch, str(repeats)]
    done = subprocess.run([python, "-c", BARE, *words], env=environment, capture_output=True, text=True)
    if "RESULT" not in done.stderr:
        sys.exit(f"the bare engine failed:\n{done.stderr[-2000:]}")
    return Counter(json.loads(done.stderr.split("RESULT")[1]))


def table(costs: dict[str, Counter]) -> list[dict]:
    """One row per way of playing: milliseconds of each part, their sum, and env's share of each bare engine."""
    rows = []
    for name, cost in costs.items():
        total = sum(cost.values())
        row = {"way": name, **{part: round(1000 * cost[part], 1) for part in PARTS}, "total": round(1000 * total, 1)}
        row["env_vs_this"] = round(sum(costs["env"].values()) / total, 2)
        rows.append(row)
    return rows


def write_csv(path: Path, rows: list[dict]) -> None:
    """The rows as a file with a header."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=Path, default=ROOT / "data" / "mini")
    parser.add_argument("--tasks", type=int, default=9)
    parser.add_argument("--copies", type=int, default=8, help="episodes of a group, which share one opening")
    parser.add_argument("--repeats", type=int, default=2, help="how often the bare engine plays each task")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    tasks = choose(args.world, args.tasks)
    with tempfile.TemporaryDirectory() as scratch:
        costs = {
            "env": env_cost(args.world, tasks, args.copies),
            "bare": bare_cost(args.world, tasks, False, Path(scratch), args.repeats),
            "bare, patched": bare_cost(args.world, tasks, True, Path(scratch), args.repeats),
        }
    rows = table(costs)
    print(f"CPU milliseconds per episode, {len(tasks)} tasks, groups of {args.copies} ({args.world.name})")
    print("  ".join(f"{name:>13}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:>13}" for value in row.values()))
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
