"""ScienceWorld's simulator: one Java process, driven over py4j without the package's wrapper. Runs in .venvs/scienceworld.

The wrapper asks for all valid actions at every step (15 to 170 ms); here a step is the step, the score and whether it is over.

The simulator draws from one global random generator that nobody seeds, so that bees and plants of the same task differ from
play to play. Here it is seeded before a task is loaded and before each step, by the task and the number of the step alone. And it
lists what a room holds in the order of a hash set, that is of Java's identity hashes, which depend on all games before: they are
made equal, so that a set keeps the order in which things came. So equal actions in equal tasks see equal texts, in whatever
process and beside whatever other games. All calls come from one thread: the simulator has more global state than that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from sagelib import java

HEAP_MB = 1024       # of one Java process; a game takes 6 to 12 MB
MOST_GAMES = 72      # open at once in it
MOST_CHARACTERS = 200   # of an action; the longest ones that mean something have half as many
NO_ACTION = "No known action matches that input."   # as the simulator says it
OPTIONS = ("-Xss2m", "-XX:+UseSerialGC", "-XX:ActiveProcessorCount=1", "-XX:+ExitOnOutOfMemoryError",
           "-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")   # 2: equal for all objects
EASY = "easy"        # all of the package's simplifications that the task allows: teleport, open doors, self-watering pots


logging.getLogger("py4j").setLevel(logging.CRITICAL)   # a dead process is an exception here, not pages of log


class EngineDied(RuntimeError):
    """The Java process is gone, or does not speak any more."""


def jar() -> Path:
    """The simulator, inside its package."""
    return Path(importlib.util.find_spec("scienceworld").origin).with_name("scienceworld.jar")


class Engine:
    """A Java process that ends with this one: it reads a pipe that only this process holds open."""

    def __init__(self, heap_mb: int = HEAP_MB) -> None:
        port, token, self.process = launch_gateway(
            classpath=str(jar()), cwd=str(jar().parent), java_path=java.find(), javaopts=[f"-Xmx{heap_mb}m", *OPTIONS],
            die_on_exit=True, enable_auth=True, return_proc=True)
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token), java_process=self.process)
        jvm = self.gateway.jvm
        # It prints a line for each thing that it does; before any Scala class has looked up where to.
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
        self._random = jvm.java.lang.Class.forName("scala.util.Random$").getField("MODULE$").get(None)
        self._free: list[Any] = []
        self.open_games = 0
        first = self.borrow()
        self.names = list(first.getTaskNames())
        self.give_back(first)

    def borrow(self) -> Any:
        """A simulator of its own for one game; `give_back` it. ValueError when too many are out."""
        if self.open_games >= MOST_GAMES:
            raise ValueError(f"{MOST_GAMES} games are open in this process already; close some, or use more workers")
        self.open_games += 1
        return self._free.pop() if self._free else self.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def give_back(self, simulator: Any) -> None:
        """The next game loads its task into this one: a new one each time would only fill the memory."""
        self.open_games -= 1
        self._free.append(simulator)

    def instructions(self, task: str, variations: Iterable[int]) -> list[str]:
        """What these variations ask for, without making their worlds: milliseconds each. Names in brackets may be swapped."""
        maker = self.gateway.jvm.scienceworld.tasks.TaskMaker1().getTask(task).get()
        return [" ".join(maker.setupGoals(variation).description().split()) for variation in variations]

    def seed(self, *parts: Any) -> None:
        """The simulator's random numbers from here on depend on these alone."""
        self._random.setSeed(zlib.crc32(repr(parts).encode()))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Game:
    """One attempt at a task. ``start`` is what is to be seen at first, ``shown`` what the last action led to."""

    def __init__(self, engine: Engine, task: str, variation: int, gold: bool = False, simplify: str = EASY) -> None:
        self.engine, self.task, self.variation, self.moves = engine, task, variation, 0
        self.done, self.score = False, 0.0
        try:
            if task not in engine.names:
                raise KeyError(f"no task {task!r}; there are {', '.join(engine.names)}")
            self.simulator = engine.borrow()
            count = self.simulator.getTaskMaxVariations(task)
            if not 0 <= variation < count:
                engine.give_back(self.simulator)
                raise KeyError(f"no variation {variation} of {task}: it has {count}")
            engine.seed(task, variation)
            self.simulator.load(task, variation, simplify, gold)
            self.instruction = " ".join(self.simulator.getTaskDescription().split())
            self.shown = self.start = self._act("look around")
        except (Py4JError, OSError) as error:
            raise EngineDied(f"{type(error).__name__}: {error}") from error

    def _act(self, action: str) -> str:
        self.engine.seed(self.task, self.variation, self.moves)
        self.moves += 1
        return self.simulator.step(action).strip()

    def step(self, action: str) -> None:
        """Does nothing in a game that is over. A wrong focus or answer ends it with the score -1, as in the package.

        What the simulator stumbles over (an exception of Java's) is an action that means nothing, not a broken game.
        """
        if self.done:
            return
        try:
            self.shown = self._act(action.encode(errors="replace").decode()[:MOST_CHARACTERS])
            self.score = self.simulator.getScore()
            self.done = bool(self.simulator.getCompleted()) or self.score < 0
        except Py4JJavaError:
            self.shown = NO_ACTION
        except (Py4JError, OSError) as error:
            raise EngineDied(f"{type(error).__name__}: {error}") from error

    def gold(self) -> list[str]:
        """The package's own solution, if it was loaded with ``gold``. The bare numbers in it resolve an ambiguity."""
        return list(self.simulator.getGoldActionSequence())

    def splits(self) -> dict[str, list[int]]:
        """The package's official train, dev and test variations of this task."""
        names = {"train": "getVariationsTrain", "dev": "getVariationsDev", "test": "getVariationsTest"}
        return {split: sorted(getattr(self.simulator, name)()) for split, name in names.items()}

    def valid(self) -> list[str]:
        """All actions that mean something now: thousands, and slow."""
        return sorted(self.simulator.getValidActionObjectCombinations())

    def close(self) -> None:
        self.engine.give_back(self.simulator)


def fingerprint(task: str, variation: int, instruction: str, start: str) -> str:
    """16 hex digits of what makes it this task: its place in the package's list, the goal, and what is to be seen at first."""
    return hashlib.sha256(repr((task, variation, instruction, sorted(start.splitlines()))).encode()).hexdigest()[:16]
