"""What a text world costs, and who solves its tasks: CPU milliseconds of its process, the expert, and chance.

    .venvs/main/bin/python benchmarks/text_world_cost.py alfworld-smoke [--tasks 40] [--turns 50] [--out FILE.csv]

reset: opening a task for the first time, and again. step: of the expert's and of the random player's actions. solved: within
TURNS actions without a document. The random player takes the expert's first action, then any that the world offers. Tasks are
spread over the test split. CPU times are of the one server process: other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from engine_cost import write_csv

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from sagelib import rise_worlds  # noqa: E402
from sagelib.rise_document import parse_action  # noqa: E402
from sagelib.rise_prompts import Draft, task_text, text_of, turn_text  # noqa: E402
from sagelib.text_pool import TextPool, TextVisit  # noqa: E402

Player = Callable[[TextVisit, list[tuple[str, str]]], str]   # (visit, actions and what they led to) -> action


def expert(world: rise_worlds.TextWorld) -> Player:
    """The world's rule player, without a document."""
    def act(visit: TextVisit, turns: list[tuple[str, str]]) -> str:
        history = tuple(turn_text(action, page) for action, page in turns)
        draft = Draft("", None, task_text(visit.task.instruction, visit.task.start), history)
        return parse_action(world.reply_to(text_of(draft, len(history), None) + "<|im_end|>", rise_worlds.EXPERT))
    return act


def chance(first: Player, seed: int) -> Player:
    """The expert's first action, then any that is offered."""
    rng = random.Random(seed)
    return lambda visit, turns: rng.choice(visit.choices) if visit.choices else first(visit, [])


class Meter:
    """CPU and wall seconds of a pool's one process, per piece of work."""

    def __init__(self, pool: TextPool) -> None:
        self.pool = pool

    def spent(self) -> tuple[float, float]:
        times = psutil.Process(self.pool.workers[0].process.pid).cpu_times()
        return times.user + times.system, time.perf_counter()

    def per(self, count: int, work: Callable[[], object]) -> tuple[object, float, float]:
        """(what the work returned, CPU ms, wall ms for each of ``count``)."""
        cpu, wall = self.spent()
        value = work()
        cpu_after, wall_after = self.spent()
        return value, 1000 * (cpu_after - cpu) / count, 1000 * (wall_after - wall) / count


def play(pool: TextPool, visits: list[TextVisit], act: Player, turns: int) -> int:
    """Plays all visits side by side; the number of actions."""
    history: dict[int, list[tuple[str, str]]] = {id(visit): [] for visit in visits}
    live, count = list(visits), 0
    for _ in range(turns):
        actions = [act(visit, history[id(visit)]) for visit in live]
        results = pool.step(list(zip(live, actions, strict=True)))
        count += len(live)
        for visit, action, result in zip(live, actions, results, strict=True):
            if result.status != "ok":
                raise RuntimeError(f"{visit.task.task_id}: {visit.failure}")
            history[id(visit)].append((action, result.output))
        live = [visit for visit, result in zip(live, results, strict=True) if not result.done]
        if not live:
            break
    return count


def measure(name: str, tasks: int, turns: int) -> dict[str, object]:
    """One row of the table."""
    world = rise_worlds.find(name)
    directory = world.directory()
    cards = world.cards(directory, "test")
    ids = [card.task_id for card in cards[:: max(1, len(cards) // tasks)]][:tasks]
    row: dict[str, object] = {"world": name, "tasks": len(ids), "turns": turns}
    with world.pool(directory) as pool:
        pool.close(pool.open([(ids[0], 1)])[0])   # the process is up
        meter = Meter(pool)
        for label in ("reset_first", "reset_again"):
            groups, cpu, wall = meter.per(len(ids), lambda: pool.open([(task, 1) for task in ids]))
            visits = [group[0] for group in groups]
            row |= {f"{label}_cpu_ms": round(cpu, 2), f"{label}_ms": round(wall, 2)}
            player = expert(world) if label == "reset_first" else chance(expert(world), 0)
            who = "expert" if label == "reset_first" else "random"
            count, cpu, wall = meter.per(1, lambda visits=visits, player=player: play(pool, visits, player, turns))
            row |= {f"{who}_steps": count, f"{who}_step_cpu_ms": round(cpu / count, 2), f"{who}_step_ms": round(wall / count, 2)}
            row[f"{who}_solved"] = round(100 * sum(o.success for o in pool.judge(visits)) / len(visits), 1)
            pool.close(visits)
        row["memory_mb"] = round(psutil.Process(pool.workers[0].process.pid).memory_info().rss / 1e6)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", nargs="+", metavar="WORLD")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--out", type=Path, help="a csv file")
    options = parser.parse_args()
    rows = [measure(name, options.tasks, options.turns) for name in options.worlds]
    for row in rows:
        print("\n".join(f"{key:<22} {value}" for key, value in row.items()), end="\n\n")
    if options.out:
        write_csv(options.out, rows)


if __name__ == "__main__":
    main()
