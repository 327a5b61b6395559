"""The worlds of SkillRise by name, KIND-SIZE: shop-mini, alfworld-smoke. Standard library only (setup reads it, too).

A world is what the ``world(name)`` of the module KIND returns, a `TextWorld`. To add one: write that module and add its line to
KINDS. In all but one, actions are commands in words; in "appworld" they are Python. What is common to all is elsewhere: processes
(`text_server`, `text_pool`), manifests (`rise_sequences`), the loop (`rise_loop`), the mixture of players (`rise_demos`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Settings = Mapping[str, Mapping[str, Mapping[str, Any]]]   # profile -> section -> what differs from the profile's own numbers


@dataclass(frozen=True)
class Kind:
    """What is known of a kind of world before anything is installed.

    ``environment``: its engine's, below .venvs, built from the list of that name in pyproject.toml. ``tools``: programs that are
    needed to build it, and the Debian packages that have them. ``java``: the oldest Java that it runs on, 0 for none. ``module``:
    where its ``world`` is, if not in the module of its name. ``action``: a command in tags, or a Python block.
    """

    sizes: tuple[str, ...]
    environment: str = "main"
    tools: Mapping[str, str] = field(default_factory=dict)
    java: int = 0
    profiles: Mapping[str, str] = field(default_factory=lambda: {"smoke": "smoke", "laptop": "mini"})   # profile -> size
    module: str = ""
    action: Literal["tag", "code"] = "tag"

    @property
    def own_environment(self) -> bool:
        """Whether its engine has an environment that nothing else uses."""
        return self.environment not in ("main", "appworld")


KINDS = {
    "shop": Kind(("mini", "smoke")),
    "alfworld": Kind(("mini", "smoke", "official"), environment="alfworld",
                     tools={"g++": "g++", "make": "make", "cmake": "cmake"}),
    "scienceworld": Kind(("mini", "smoke"), environment="scienceworld", java=11),   # what it is asked of Java came with 11
    "appworld": Kind(("mini", "smoke"), environment="appworld", module="code_world", action="code"),   # the main job's worlds
}


@dataclass(frozen=True)
class Style:
    """What a rule player does. The expert does all three; see each world's expert for what looking is there."""

    careful: bool = True    # looks before it acts
    document: bool = True   # believes the document
    notes: bool = True      # as the curator writes down what it saw; else only general advice


EXPERT = Style()


@dataclass(frozen=True)
class TextWorld:
    """All that the notebooks need of a world."""

    name: str
    directory: Callable[[], Path]                 # where its tasks are, made there if need be
    cards: Callable[[Path, str], list]            # (directory, split) -> TaskCards; splits: demos, train, dev, test
    pool: Callable[..., Any]                      # (directory, workers=1) -> TextPool
    reply_to: Callable[[str, Style], str]         # a rule player's reply to a whole conversation
    copying_pairs: Callable[[int, int], list[dict[str, str]]]   # (count, seed) -> short exercises, text -> code
    plan: Mapping[str, Any]                       # of SequencePlan: difficulty, order, distinct
    about: str                                    # what it is played on, and what its scores are not
    settings: Settings = field(default_factory=dict)
    start: str = ""                               # notebook whose SFT policy 19_skillrise_sft goes on from; "": from nothing
    # what is carried in the demonstrations -> every so many-th sequence is played like that
    demos: Mapping[str, int] = field(default_factory=lambda: {"document": 1, "none": 3, "reflection": 3})


def kind_of(name: str) -> str:
    """"shop" for "shop-mini". ValueError for a name that is none."""
    kind, _, size = name.partition("-")
    if size not in (KINDS[kind].sizes if kind in KINDS else ()):
        known = ", ".join(f"{k}-{s}" for k, kind in KINDS.items() for s in kind.sizes)
        raise ValueError(f"world = {name!r}: there is no such text world; there are {known}")
    return kind


def of_profile(kind: str, profile: str) -> str:
    """The world of a kind that a profile plays in: "shop-mini" for ("shop", "laptop"). ValueError where there is none."""
    if profile not in KINDS[kind].profiles:
        raise ValueError(f"profile = {profile!r} has no text world; SkillRise has the profiles {', '.join(KINDS[kind].profiles)}")
    return f"{kind}-{KINDS[kind].profiles[profile]}"


def suffix(name: str) -> str:
    """What the names of a world's tables end in: nothing for the shop, whose tables were there first."""
    kind = kind_of(name)
    return "" if kind == "shop" else f"_{kind}"


def resolve(text: str, profile: str) -> str:
    """The world that a command line names: a whole name, or a kind for the profile's size of it.

    "alfworld" is the official games where they are, but for the smoke profile.
    """
    name = of_profile(text, profile) if text in KINDS else text
    if text == "alfworld" and profile != "smoke":
        from sagelib import alfworld_official

        name = "alfworld-official" if alfworld_official.root() else name
    kind_of(name)
    return name


def find(name: str) -> TextWorld:
    """The world of this name. ValueError for a name that is none."""
    kind = kind_of(name)
    module = KINDS[kind].module or kind
    # by name: the code of one world is no part of another's runs
    world = importlib.import_module(f"sagelib.{module}").world(name)
    return replace(world, directory=lambda: stamped(world.directory(), kind))


def stamped(directory: Path, kind: str) -> Path:
    """The directory. The hash in its world.json, a part of each run's id, covers the tasks and the code of this kind of world.

    Settings and profiles are left out: `run_ids.run_id` knows which of them a run has.
    """
    from sagelib import run_ids, runs

    path = directory / "world.json"
    record = json.loads(path.read_text())
    tasks = record.get("tasks_hash", record["hash"])
    files = run_ids.sources(f"import {KINDS[kind].module or kind}", Path(__file__).parent)
    files += run_ids.sources("import server", Path(__file__).parent / "engine") if KINDS[kind].environment == "appworld" else []
    files = [file for file in files if file.name not in ("config.py", "profiles.py")]
    parts = json.dumps([tasks, {file.name: run_ids.code_hash(file) for file in files}], sort_keys=True)
    whole = hashlib.sha256(parts.encode()).hexdigest()
    if record["hash"] != whole:
        runs.write_json(path, record | {"tasks_hash": tasks, "hash": whole})
    return directory
