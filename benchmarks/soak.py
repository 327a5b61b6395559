"""Many episodes with injected faults: is each fault counted as what it is, and does anything grow?

    .venvs/main/bin/python benchmarks/soak.py --episodes 2000 --json soak.json

Groups of 8 copies. Of the episodes 5 % (--share) each: end their own process, loop for ever, eat memory, print far too much,
are killed from outside (SIGKILL by process id, of this pool's own children only). Of the groups 5 % each: the template is
killed while it opens them; the judge's worker is killed while it judges them; the judge itself is killed before it does. The
others play the reference solution or do nothing; their verdicts are checked. At the end the judge's guard is killed, and a
fresh pool must work. --step-s has to leave ordinary blocks time on a machine with other work.

Exit code 1 when a fault was not counted as expected, a verdict was wrong, or something grew (see `verdict`).
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from sagelib.appworld import EnginePool, Episode, Limits, Outcome, StepResult  # noqa: E402

MODULES = "import os\nposix = os.sys.modules['posix']\n"
AGENT = {  # what the agent does -> its code, the statuses that are right
    "own_exit": (MODULES + "posix._exit(0)", {"died"}),
    "endless_loop": ("import itertools\nmax(itertools.count())", {"timeout"}),
    # a machine with other work may not fill the memory within the time limit
    "memory": ("x = []\nwhile True: x.append(bytearray(10**8))", {"error", "died", "timeout"}),
    "huge_output": ("for _ in range(100): print('x' * 100000)", {"ok"}),
    "killed_outside": ("print(1)", {"died"}),
}
OURS = ("template_killed", "judge_worker_killed", "judge_killed")
COPIES = 8


def reference(world: Path, task_id: str) -> str:
    """The reference solution as one block of code."""
    expert = json.loads((world / "judge" / "data" / "tasks" / task_id / "ground_truth" / "expert.json").read_text())
    answer = "" if expert["answer"] is None else f"answer={expert['answer']!r}"
    main = expert["main"]
    parts = [*(helper["source"] for helper in expert["helpers"]), main["source"], main["call"]]
    done = [] if "complete_task" in "".join(parts) else [f"apis.supervisor.complete_task({answer})"]
    return "\n".join(parts + done)


def children(pid: int) -> list[int]:
    """Process ids of a process's children, none when it has gone."""
    try:
        return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    except OSError:
        return []


def only_child(pid: int) -> int:
    """The one living child of a process, once it is there: the judge of a guard that may be replacing it."""
    while True:
        found = [one for one in children(pid) if "Z (zombie)" not in _status(one)]
        if len(found) == 1:
            return found[0]
        time.sleep(0.02)


def guard_of(pool: EnginePool) -> int:
    """The guard of the pool's judge: the one child of the server that is no episode."""
    stats = pool.stats()
    [guard] = set(children(stats["server_pid"])) - set(stats["episode_pids"])
    return guard


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "Z (zombie)"   # gone


class Sniper:
    """Kills the first new child of a process that appears while the block under `with` runs."""

    def __init__(self, parent: int, spare: list[int]) -> None:
        self.parent, self.spare, self.shot, self.over = parent, set(spare), 0, False
        self.thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self.over and not self.shot:
            for pid in set(children(self.parent)) - self.spare:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.shot = pid
                    return
                except ProcessLookupError:
                    pass
            time.sleep(0.001)

    def __enter__(self) -> "Sniper":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.thread.join()


class Soak:
    """The counts of one soak."""

    def __init__(self, world: Path, share: float, seed: int) -> None:
        self.world, self.share, self.random = world, share, random.Random(seed)
        self.tasks = sorted(path.parts[-3] for path in (world / "judge" / "data" / "tasks").glob("*/ground_truth/expert.json"))
        self.injected: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.statuses: dict[str, Counter[str]] = {name: Counter() for name in (*AGENT, *OURS, "none")}
        self.wrong: list[str] = []
        self.episodes = 0

    def roles(self) -> list[str]:
        """What each copy of a group does: a fault of AGENT, `solve` or `idle`."""
        found = []
        for _ in range(COPIES):
            draw = self.random.random()
            faults = list(AGENT)
            found.append(faults[int(draw / self.share)] if draw < self.share * len(faults) else self.random.choice(["solve",
            "idle"]))
        return found

    def group(self, pool: EnginePool, server: int, guard: int) -> None:
        """One group: open, one step each, judge, close."""
        task, roles = self.random.choice(self.tasks), self.roles()
        draw = self.random.random()
        self.episodes += COPIES
        if draw < self.share:
            return self._opened_under_fire(pool, server, task)
        [episodes] = pool.open([(task, COPIES)])
        self._kill_outside(pool, episodes, roles)
        results = pool.step([(e, self._code(task, role)) for e, role in zip(episodes, roles, strict=True)])
        self._count_steps(roles, results)
        outcomes = self._judged_under_fire(pool, episodes, guard, int(draw / self.share))
        self._check(task, roles, results, outcomes)
        pool.close(episodes)

    def _judged_under_fire(self, pool: EnginePool, episodes: list[Episode], guard: int, what: int) -> list[Outcome]:
        """The verdicts; on the way the judge's worker (what = 1) or the judge (2) is killed, which must cost none of them."""
        judge, before = only_child(guard), pool.judge_restarts
        name, shot = OURS[what] if what in (1, 2) else "", 0
        if name == "judge_worker_killed":
            with Sniper(judge, children(judge)) as sniper:
                outcomes = pool.judge(episodes)
            shot = sniper.shot
        else:
            if name == "judge_killed":
                os.kill(judge, signal.SIGKILL)
                shot = judge
            outcomes = pool.judge(episodes)
        if shot:
            good = all(outcome.status == "judged" for outcome in outcomes)
            self.injected[name] += 1
            self.counted[name] += good and pool.judge_restarts - before == (name == "judge_killed")
            self.statuses[name].update(outcome.status for outcome in outcomes)
        return outcomes

    def _code(self, task: str, role: str) -> str:
        if role in AGENT:
            return AGENT[role][0]
        return reference(self.world, task) if role == "solve" else "x = 1"

    def _opened_under_fire(self, pool: EnginePool, server: int, task: str) -> None:
        """The template dies while it opens the group: all copies are our fault, none is ever scored, the next group is fine.

        A shot that comes late hits one of the copies instead: then it alone is dead.
        """
        with Sniper(server, children(server)) as sniper:
            [episodes] = pool.open([(task, COPIES)])
        results = pool.step([(episode, "print(1)") for episode in episodes])
        outcomes = pool.judge(episodes)
        statuses = Counter(r.status for r in results)
        late = statuses == {"died": 1, "ok": COPIES - 1}
        name = "killed_outside" if late else "template_killed"
        lost = set(statuses) == {"env_failure"} and {o.status for o in outcomes} == {"env_failure"}
        self.injected[name] += bool(sniper.shot)
        self.counted[name] += bool(sniper.shot) and (lost or late)
        self.statuses[name].update(statuses)
        pool.close(episodes)

    @staticmethod
    def _kill_outside(pool: EnginePool, episodes: list[Episode], roles: list[str]) -> None:
        """The copies with that role are killed by their process ids, which the server lists in the order of the copies."""
        pids = pool.stats()["episode_pids"][-COPIES:]
        for pid, role in zip(pids, roles, strict=True):
            if role == "killed_outside":
                os.kill(pid, signal.SIGKILL)

    def _count_steps(self, roles: list[str], results: list[StepResult]) -> None:
        for role, result in zip(roles, results, strict=True):
            if role in AGENT:
                right = result.status in AGENT[role][1] and (role != "huge_output" or result.truncated)
                self.injected[role] += 1
                self.counted[role] += right
                self.statuses[role][result.status] += 1
            else:
                self.statuses["none"][result.status] += 1

    def _check(self, task: str, roles: list[str], results: list[StepResult], outcomes: list[Outcome]) -> None:
        for role, result, outcome in zip(roles, results, outcomes, strict=True):
            if outcome.status != "judged" or outcome.success != (role == "solve"):
                self.wrong.append(f"{task} {role}: {result.status} {result.error}, {outcome.status} {outcome.success}")


def figures(pool: EnginePool, guard: int) -> dict[str, float]:
    """What must not grow."""
    stats = pool.stats()
    server, judge = stats["server_pid"], only_child(guard)
    return {
        "client_rss_mb": _rss_mb(os.getpid()),
        "server_rss_mb": _rss_mb(server),
        "judge_rss_mb": _rss_mb(judge),
        "client_fds": len(os.listdir("/proc/self/fd")),
        "server_fds": len(os.listdir(f"/proc/{server}/fd")),
        "judge_fds": len(os.listdir(f"/proc/{judge}/fd")),
        "processes": len(children(server)) + 1,
        "episodes_known": stats["episodes"] + len(pool._episodes),
        "scratch_mb": stats["scratch_mb"],
        "mounts": len(Path(f"/proc/{server}/mountinfo").read_text().splitlines()),
        "temp_files": len(os.listdir(tempfile.gettempdir())),
    }


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


MAY_GROW = {"client_rss_mb": 30.0, "server_rss_mb": 30.0, "judge_rss_mb": 30.0, "scratch_mb": 1.0}  # nothing else may at all


def guard_killed(world: Path, limits: Limits, task: str) -> dict[str, object]:
    """The judge's guard dies, and the judge with it: every verdict is our fault then, never a zero, and a new pool is whole."""
    with EnginePool(world, limits=limits) as pool:
        guard = guard_of(pool)
        [[episode]] = pool.open([(task, 1)])
        os.kill(guard, signal.SIGKILL)
        first = pool.judge([episode])[0].status
        stepped = pool.step([(episode, "print(1)")])[0].status
    with EnginePool(world, limits=limits) as pool:
        [[episode]] = pool.open([(task, 1)])
        solved = pool.step([(episode, reference(world, task))])[0].status
        after = pool.judge([episode])[0]
    return {"verdict": first, "step": stepped, "new_pool": [solved, after.status, after.success]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--world", type=Path, default=ROOT / "data" / "mini")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step-s", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:   # so that the temporary files that are counted are ours
        tempfile.tempdir = own
        report = run(options)
        tempfile.tempdir = None
    report["faults"] = verdict(report)
    text = json.dumps(report, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if report["faults"] else 0


def run(options: argparse.Namespace) -> dict:
    """The soak's report, without its verdict."""
    limits, soak, began = Limits(step_s=options.step_s), Soak(options.world, options.share, options.seed), time.time()
    warm_up, warm = max(COPIES, options.episodes // 10), None
    with EnginePool(options.world, limits=limits) as pool:
        server, guard = pool.stats()["server_pid"], guard_of(pool)
        said = began
        while soak.episodes < options.episodes:
            soak.group(pool, server, guard)
            if time.time() - said > 30:
                said = time.time()
                print(f"{soak.episodes} of {options.episodes} episodes, {said - began:.0f} s", file=sys.stderr, flush=True)
            if warm is None and soak.episodes >= warm_up:
                warm = settled(pool, guard)
        end, restarts = settled(pool, guard), pool.judge_restarts
        pids = [server, guard, only_child(guard)]
    dead_guard = guard_killed(options.world, limits, soak.tasks[0])
    return {
        "episodes": soak.episodes,
        "seconds": time.time() - began,
        "step_s": options.step_s,
        "injected": dict(soak.injected),
        "counted": dict(soak.counted),
        "statuses": {name: dict(counts) for name, counts in soak.statuses.items()},
        "wrong_verdicts": soak.wrong,
        "judge_restarts": restarts,
        "guard_killed": dead_guard,
        "warm": warm,
        "end": end,
        "processes_left": [pid for pid in pids if Path(f"/proc/{pid}").exists()],
        "temp_files_left": len(os.listdir(tempfile.gettempdir())),
    }


def settled(pool: EnginePool, guard: int) -> dict[str, float]:
    """The figures once killed processes have gone, or after three seconds."""
    deadline = time.monotonic() + 3
    while (found := figures(pool, guard))["processes"] > 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def verdict(report: dict) -> list[str]:
    """What is wrong, in words; empty when nothing is."""
    faults = [
        f"{name}: {count} injected, {report['counted'].get(name, 0)} counted as they should be"
        for name, count in report["injected"].items()
        if report["counted"].get(name, 0) != count
    ]
    grown = {name: (report["warm"][name], value) for name, value in report["end"].items()}
    faults += [f"{name} grew: {a:g} -> {b:g}" for name, (a, b) in grown.items() if b > a + MAY_GROW.get(name, 0)]
    faults += [f"{len(report['wrong_verdicts'])} wrong verdicts"] if report["wrong_verdicts"] else []
    expected = {"verdict": "env_failure", "step": "ok", "new_pool": ["ok", "judged", True]}
    faults += [f"killed guard: {report['guard_killed']}"] if report["guard_killed"] != expected else []
    faults += [f"processes left: {report['processes_left']}"] if report["processes_left"] else []
    # each of the three pools may keep its log, as something went wrong in it
    return faults + ([f"{report['temp_files_left']} temporary files left"] if report["temp_files_left"] > 3 else [])


if __name__ == "__main__":
    sys.exit(main())
