"""What ScienceWorld costs and how far the package's own solutions get: .venvs/main/bin/python benchmarks/scienceworld_cost.py

One process, one Java process, one game at a time, each task type at its first variations: the package's gold path, played again
step by step, and random valid actions; what a load and a step cost, by the clock and in CPU time of both processes; the memory of
the Java process at the end. Prints a table; --out writes it as csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> None:
    from sagelib import scienceworld

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variations", type=int, default=1, help="of each task type")
    parser.add_argument("--tasks", default="", help="only these types, with commas between them")
    parser.add_argument("--random-steps", type=int, default=30, help="actions of the random player (0: none)")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    command = [scienceworld.python(), __file__, "--measure", str(given.variations), given.tasks, str(given.random_steps),
               str(given.out or "")]
    raise SystemExit(subprocess.run(command, cwd=ROOT, env=scienceworld.environment()).returncode)


def measure(variations: int, only: str, random_steps: int, out: str) -> None:
    """In the engine's own environment."""
    from sagelib.scienceworld_engine import Engine

    begun = time.perf_counter()
    engine = Engine()
    print(f"start {time.perf_counter() - begun:.2f} s")
    names, rows = only.split(",") if only else engine.names, []
    for task in names:
        for variation in range(variations):
            row = one(engine, task, variation, random_steps)
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    with open(f"/proc/{engine.process.pid}/status") as file:
        peak = next(line.split()[1] for line in file if line.startswith("VmHWM"))
    gold, luck = [row["gold_score"] for row in rows], [row["random_score"] for row in rows]
    steps = [row["step_cpu_ms"] for row in rows]
    loads = statistics.median(row["load_cpu_ms"] for row in rows)
    print(f"{len(rows)} tasks: full score {gold.count(1.0)} by gold path, {luck.count(1.0)} by chance (mean score "
          f"{statistics.mean(gold):.3f} and {statistics.mean(luck):.3f}); CPU, median: load {loads:.0f} ms, "
          f"step {statistics.median(steps):.1f} ms (slowest type {max(steps):.1f}); Java at most {int(peak) // 1024} MB")
    engine.close()
    if out:
        with open(out, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def one(engine, task: str, variation: int, random_steps: int) -> dict:
    """A row of the table: gold path and random player at one task."""
    from sagelib.scienceworld_engine import Game

    game = Game(engine, task, variation, gold=True)
    path = game.gold()
    game.close()
    before = spent(engine)
    game = Game(engine, task, variation)
    loaded = spent(engine)
    for action in path:
        game.step(action)
    played, count, score = spent(engine), max(1, game.moves - 1), game.score
    game.close()
    game, rng = Game(engine, task, variation), random.Random(f"{task} {variation}")
    for _ in range(random_steps):
        game.step(rng.choice(game.valid()))
    luck = max(0.0, game.score)
    game.close()
    return {"task": task, "variation": variation, "gold_actions": len(path), "gold_score": round(score, 3),
            "random_score": round(luck, 3),
            "load_ms": round(loaded[0] - before[0], 1), "load_cpu_ms": round(loaded[1] - before[1], 1),
            "step_ms": round((played[0] - loaded[0]) / count, 2), "step_cpu_ms": round((played[1] - loaded[1]) / count, 2)}


def spent(engine) -> tuple[float, float]:
    """Milliseconds by the clock, and of CPU: this process and the Java process (which counts in steps of 10)."""
    fields = Path(f"/proc/{engine.process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return 1000 * time.perf_counter(), 1000 * (time.process_time() + ticks / os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main()
