"""ALFWorld's text engine (TextWorld's PddlEnv on Fast Downward), with its pure functions computed once. Runs in .venvs/alfworld.

What is remembered, each a function of what it is remembered by: the translation of a PDDL problem, the parse of a grammar rule,
the parse of a condition, and, per game, the introduction and the command of each operator (it names objects and what stands
where, which no action changes). Texts, commands and scores stay the engine's: `tests/test_alfworld.py` compares whole transcripts
with the engine as it was installed.

The engine keeps its state in a shared library, a copy for each visit: an `Engines` lends them out and takes them back.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import fast_downward
import textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs import PddlEnv
from textworld.envs.pddl import logic, textgen

TRANSLATIONS = 64   # PDDL problems whose translation is kept, about 4 MB each


@functools.cache
def remember() -> None:
    """From now on this process's engine computes each pure function once for each argument."""
    translate = functools.lru_cache(TRANSLATIONS)(fast_downward.pddl2sas)
    # The second translation of each problem is for the planner alone, which is not used here.
    fast_downward.pddl2sas = lambda domain, problem, verbose=False, optimize=False: _keep_argv(translate, domain, problem)
    parse = functools.lru_cache(4096)(lambda text, rule_name: textgen._PARSER.parse(text, rule_name=rule_name))
    convert = textgen._Converter   # of a tree that was parsed before: the symbols are fresh each time
    textgen._parse_and_convert = lambda text, rule_name=None, **_: convert().walk(parse(text, rule_name))
    textgen.Rule.parse_conjunctive_query = functools.lru_cache(4096)(textgen.Rule.parse_conjunctive_query)


def mend() -> None:
    """Python 3.13: the engine writes into locals() and reads them with eval, which no longer does anything (PEP 667)."""
    if sys.version_info >= (3, 13):
        textgen.EvalSymbol.derive = lambda self, context=None: [
            textgen.TerminalSymbol(eval(self.expression, {}, dict((context or self.context)["variables"])))]


def _keep_argv(function: Any, *args: Any) -> Any:
    """The translator overwrites sys.argv."""
    kept = sys.argv
    try:
        return function(*args)
    finally:
        sys.argv = kept


class Game:
    """A game's data and everything about it that no action changes."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.logic = logic.GameLogic(domain=data["pddl_domain"], grammar=data["grammar"])
        self.derived: dict[Any, str] = {}
        derive = self.logic.grammar.derive

        def derive_once(start: str, context: dict[str, Any]) -> str:
            """Commands and the introduction are derived once; feedback, which depends on the state, always."""
            if start != "#intro#" and start.startswith("#"):
                return derive(start, context)
            key = (start, *((hole.name, thing.name) for hole, thing in context["mapping"].items()))
            if key not in self.derived:
                self.derived[key] = derive(start, context)
            return self.derived[key]

        self.logic.grammar.derive = derive_once
        self.entities: dict[str, Any] | None = None


class Engine(PddlEnv):
    """The package's engine, given a `Game` in place of a file."""

    def load(self, game: Game) -> None:
        self.game = game
        self._game_file, self._game_data, self._logic = None, game.data, game.logic
        self.walkthrough = game.data.get("walkthrough")
        if game.entities is None:
            self._pddl_state = logic.PddlState(self.downward_lib, game.data["pddl_problem"], game.logic)
            game.entities = self._get_entity_infos()
            names = Demangler(game_infos=game.entities)
            for info in game.entities.values():
                info.name = names.demangle_alfred_name(info.id)
        self._entity_infos = game.entities


class Engines:
    """Engines that are not in use, for the next visit: each holds an open copy of a library of 34 MB."""

    def __init__(self) -> None:
        mend()
        remember()
        self.idle: list[Engine] = []

    def start(self, game: Game) -> Play:
        engine = self.idle.pop() if self.idle else Engine(textworld.EnvInfos(admissible_commands=True, won=True))
        engine.load(game)
        return Play(engine, engine.reset())

    def end(self, play: Play) -> None:
        """The play's engine is free again."""
        if play.engine is not None:
            self.idle.append(play.engine)
            play.engine = None


class Play:
    """A game being played. ``text`` is what the engine said last, ``commands`` what it accepts now."""

    def __init__(self, engine: Engine, state: Any) -> None:
        self.engine: Engine | None = engine
        self.intro = state.feedback
        self._see(state)

    def _see(self, state: Any) -> None:
        self.text, self.commands, self.won = state.feedback, state.admissible_commands, bool(state.won)

    def step(self, command: str) -> None:
        """Takes the command; one that is not accepted changes nothing ("Nothing happens.")."""
        self._see(self.engine.step(command)[0])


def read_game(path: Path) -> Game:
    """A game.tw-pddl file."""
    return Game(json.loads(Path(path).read_text()))
