"""A parameter arrives in a notebook exactly as it was given, or is refused by name: no third way, whatever it is.

The path is the real one: the check of parameters, papermill's translation into code, that code executed, the configuration.
Some go through real kernels. Values are also read from YAML and from papermill's command line, with their surprises.
"""

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from notebook_maker import make
from papermill.cli import _resolve_type
from papermill.translators import PythonTranslator
from test_runs import runs_directory, wait_for  # noqa: F401

from sagelib.config import ConfigError, TrainConfig
from sagelib.job import Job
from sagelib.parameters import check_parameters
from sagelib.runs import RunError

FIELDS = sorted(set(TrainConfig.model_fields) - {"method", "profile"})
PARAMETERS = 'profile = "smoke"\nmethod = "sage"\n' + "\n".join(f"{name} = None" for name in FIELDS)
FUZZ = settings(max_examples=250, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("fuzz") / "train.ipynb", parameters=PARAMETERS)


def arrived(notebook: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """The notebook's variables after papermill's cell. RunError from the check of parameters."""
    sent = check_parameters(notebook, parameters)
    json.dumps(sent, ensure_ascii=False).encode()  # papermill stores them in the notebook's file, too
    scope: dict[str, Any] = {}
    exec(PARAMETERS, scope)
    exec(PythonTranslator.codify(sent), scope)
    return {name: scope[name] for name in (*FIELDS, "profile", "method")}


def same(given: Any, got: Any) -> bool:
    """Equal and of the same kind, inside too; a float field may be given as an integer."""
    if isinstance(given, float) and isinstance(got, float):
        return given == got and math.copysign(1, given) == math.copysign(1, got)
    if isinstance(given, dict) and isinstance(got, dict):
        return list(given) == list(got) and all(same(given[k], got[k]) for k in given)
    if isinstance(given, list) and isinstance(got, list):
        return len(given) == len(got) and all(map(same, given, got))
    return type(given) is type(got) and given == got


def exact_or_refused(notebook: Path, name: str, value: Any) -> str:
    """ "exact" when the setting is what was given, "refused" when the error names it; anything else fails the test."""
    try:
        seen = arrived(notebook, {name: value})
    except RunError as error:
        assert name in str(error), error
        return "refused"
    plain = str(value) if isinstance(value, Path) else value.item() if type(value).__module__ == "numpy" else value
    assert same(plain, seen[name]), (name, value, seen[name])
    try:
        config = TrainConfig.from_parameters(**seen)
    except ConfigError as error:
        assert name in str(error), error
        return "refused"
    got = getattr(config, name)
    if value is None:
        assert got == getattr(TrainConfig.from_parameters("smoke", method="sage"), name)
    else:
        assert same(plain, got) or type(plain) is int and type(got) is float and float(plain) == got, (name, value, got)
    return "exact"


HALVES = st.text(st.characters(whitelist_categories=["Cs"]), min_size=1, max_size=3)
TEXT = st.text() | st.sampled_from(["", "'", '"', "\\", "\\n", "a\nb", "{x}", "%s", "{{}}", "\0", "\u2028", "é", "🙂",
"x" * 5000, "../" * 900,
                                    "C:\\new\\table", '"""', "'''", "# x", "None", "True", "1e-5", "$HOME", "\ufeff", "\x85"])
NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
NUMBERS |= st.integers(4290, 5000).map(lambda digits: 10**digits)  # about where Python stops printing them
NUMBERS |= st.sampled_from([0, -0.0, 1, 2**31, 2**63, 10**400, 5e-324, 1e308])
ODD = st.dates() | st.datetimes() | st.tuples(st.integers())
ODD |= st.binary(max_size=4) | st.sets(st.integers(), max_size=2) | st.complex_numbers()
NUMPY = st.sampled_from([np.int64(3), np.float32(0.5), np.float64("nan"), np.bool_(True), np.str_("sage"), np.zeros(2),
np.zeros(()), Path("a b/c")])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | ODD | NUMPY | HALVES
VALUES = LEAVES | st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers() | HALVES,
    inner, max_size=3), max_leaves=6
)


@FUZZ
@given(name=st.sampled_from(FIELDS), value=VALUES)
def test_any_value_is_exact_or_refused(notebook: Path, name: str, value: Any) -> None:
    exact_or_refused(notebook, name, value)


PLAUSIBLE = {  # what a person may well give: each must come through
    "learning_rate": st.floats(1e-12, 10), "temperature": st.floats(0.01, 5), "step_seconds": st.floats(0.1, 1e4),
    "seed": st.integers(0, 2**31 - 1),
    "steps": st.integers(1, 10**9), "max_context": st.integers(1, 10**6), "world": st.text(min_size=1),
    "train_embeddings": st.booleans(),
    "schedule": st.sampled_from(["constant", "linear"]), "clip_eps": st.floats(1e-6, 0.999), "weight_decay": st.floats(0, 1),
}  # fmt: skip


@FUZZ
@given(chosen=st.sampled_from(sorted(PLAUSIBLE)).flatmap(lambda name: st.tuples(st.just(name), PLAUSIBLE[name])))
def test_a_plausible_value_is_exact(notebook: Path, chosen: tuple[str, Any]) -> None:
    assert exact_or_refused(notebook, *chosen) == "exact"


YAML = [  # what YAML 1.1 makes of each is often a surprise; what matters is that it is exact or refused
    "1e-5", "1.0e-5", "1E5", ".5", "5.", "+1", "-0", "012", "0o12", "0x1F", "0b11", "1_000", "12:30", "190:20:30", "1,5",
    "yes", "no", "on", "off", "y", "Yes",
    "true", "TRUE", "~", "null", "Null", "", ".nan", ".inf", "-.inf", "NaN", "2026-11-30", "2026-11-30 08:00:00", "!!str 3",
    "!!float 3", "!!int '3'",
    "'3'", '"3"', "[1, 2]", "[]", "{}", "{a: 1}", "{1: 2}", "[[1]]", "- 1", "a: b", "!!set {a}", "!!binary aGk=",
    "!!timestamp 2026-11-30", "|\n  a\n  b",
    "'a''b'", '"\\u2028"', '"\\0"', "C:\\temp", "@x", "&a 1", "sage", "constant", "linear", "3.0", "3", "0", "-1", "1e400",
    "99999999999999999999",
]  # fmt: skip


@pytest.mark.parametrize("text", YAML)
def test_what_yaml_and_the_command_line_make_of_a_text(notebook: Path, text: str) -> None:
    """Every spelling for every kind of field: read by YAML (papermill -y), and by papermill's -p."""
    for read in (yaml.safe_load, _resolve_type):
        try:
            value = read(text)
        except (yaml.YAMLError, ValueError):
            continue
        for name in ("learning_rate", "steps", "train_embeddings", "schedule", "seed"):
            exact_or_refused(notebook, name, value)


@pytest.mark.parametrize("name, text, said", [
    ("learning_rate", "1e-5", "write it without quotes"), ("train_embeddings", "1", "train_embeddings = 1"), ("seed",
    "12:30", None),
    ("steps", "yes", "steps = True"), ("steps", "3.0", "steps = 3.0"), ("seed", "2026-11-30", "a date does not arrive"),
    ("learning_rate", ".nan", "only finite"),
    ("schedule", "off", "schedule = False"), ("steps", "[3]", "steps = [3]"), ("learning_rate", "1e400",
    "learning_rate")])  # fmt: skip
def test_refusals_name_the_field_and_say_why(notebook: Path, name: str, text: str, said: str | None) -> None:
    value = yaml.safe_load(text)
    if said is None:  # YAML 1.1 reads 12:30 as 750: nothing is left to see it by
        assert (value, exact_or_refused(notebook, name, value)) == (750, "exact")
        return
    with pytest.raises((RunError, ConfigError)) as caught:
        TrainConfig.from_parameters(**arrived(notebook, {name: value}))
    assert name in str(caught.value) and said in str(caught.value)


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


UNFIT = {
    "half a character": ("a\ud800", "lone surrogate"), "half a key": ({"\udfff": 1}, "lone surrogate"),
    "huge integer": (10**4400, "bits cannot"), "huge integer in a tuple": ((10**4400,), "a tuple does not arrive"),
    "deep": (deep(60), "nested deeper"), "deeper than Python's stack": (deep(5000), "nested deeper"),
    "date": (datetime.date(2026, 11, 30), "a date does not"), "key": ({1: 2}, "key 1 is no text"), "inf": ([float("inf")], "only finite"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNFIT)
def test_what_no_notebook_can_hold_is_refused_before_it_runs(notebook: Path, kind: str) -> None:
    value, said = UNFIT[kind]
    with pytest.raises(RunError, match=said):
        check_parameters(notebook, {"world": value})


def test_what_just_fits_arrives(notebook: Path) -> None:
    for value in (deep(40), 10**3900, -(2**10000), "x" * 10**6):
        assert same(value, arrived(notebook, {"world": value})["world"])


KERNELS = {
    "text": {"name": "a'b\"c\\d\n\u2028 é 🙂 {x} %s \0", "value": "\\"},
    "numbers": {"learning_rate": 5e-324, "steps": 2**70, "value": [-0.0, 1e308, 10**3000]},
    "nested": {"value": {"a b": [None, True, {"": []}], "é": {}}, "name": ""},
    "path": {"name": "x/" * 2000, "value": None},
    "yaml": {"learning_rate": yaml.safe_load("1.0e-5"), "value": yaml.safe_load("[yes, 012, 1e-5, ~]")},
}  # fmt: skip
SEEN = ("from sagelib.runs import open_run\nrun = open_run({'profile': profile, 'seed': seed})\n"
        "run.finish({'learning_rate': learning_rate, 'steps': steps, 'name': name, 'value': value,\n"
        "            'types': [type(x).__name__ for x in (learning_rate, steps, name, value)]})")  # fmt: skip


def test_real_kernels_see_what_was_given(tmp_path: Path, runs_directory) -> None:  # noqa: F811
    defaults = {"learning_rate": 0.1, "steps": 3, "name": "a", "value": None}
    jobs = {kind: Job(make(tmp_path / f"{kind}.ipynb", SEEN), sent) for kind, sent in KERNELS.items()}
    for job in jobs.values():
        job.start()
    wait_for(lambda: all([job.poll() is not None for job in jobs.values()]), 120)
    for kind, job in jobs.items():
        record, wanted = job.record(), defaults | KERNELS[kind]
        assert record["status"] == "done", record["reason"]
        got = json.loads((job.dir / "results.json").read_text())
        assert same(wanted, {name: got[name] for name in wanted}), kind
        assert got["types"] == [type(wanted[name]).__name__ for name in ("learning_rate", "steps", "name", "value")]
