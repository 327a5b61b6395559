"""pip, asked for pyproject.toml's lists: each extra resolves inside its range, and never to a release of years ago.

The first tests need no network: their index is a folder of empty packages. The last one asks the index that pip is set up with.
"""
import json
import os
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement
from test_packaging import EXTRAS, PROJECT, TOOL

from sagelib.building import CAUSES, clean_env

ANCIENT = "0.0.1"
NETWORK = next(signs for signs, meaning in CAUSES if meaning.startswith("no package index"))


def floor(requirement):
    """The lowest release in the range, where a wildcard is 0: 5.24.* is 5.24.0."""
    return next(s.version.replace(".*", ".0") for s in requirement.specifier if s.operator in ("==", ">="))


def package(folder, name, version, needs=()):
    """An empty wheel."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def resolve(lines, out, folder=None):
    """({package: release} or None, what pip said) for these requirements out of the folder alone, or as pip is set up here.

    Nothing is installed.
    """
    options, env = [], clean_env()
    if folder:
        options = ["--no-index", "--find-links", str(folder)]
        env = {key: value for key, value in env.items() if not key.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-input",
               "--report", str(out), *options, *lines]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1500)
    if done.returncode:
        return None, done.stderr
    found = json.loads(out.read_text())["install"]
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in found}, done.stderr


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Everything that pyproject.toml names, at its floor and as a release of years ago that needs nothing."""
    folder = tmp_path_factory.mktemp("index")
    for requirement in map(Requirement, {*PROJECT["dependencies"], *TOOL["first"], *sum(EXTRAS.values(), [])}):
        for version in {floor(requirement), ANCIENT}:
            package(folder, requirement.name, version)
    return folder


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_each_extra_resolves_at_its_floors(index, tmp_path, extra):
    lines = [*TOOL["first"], *PROJECT["dependencies"], *(EXTRAS[extra] if extra else [])]
    found, said = resolve(lines, tmp_path / "report", index)
    assert found, said
    for requirement in map(Requirement, lines):
        assert requirement.specifier.contains(found[requirement.name.lower()])


@pytest.fixture(scope="module")
def clash(tmp_path_factory):
    """An index whose every fitting vLLM wants another transformers; its release of years ago wants nothing."""
    folder = tmp_path_factory.mktemp("clash")
    package(folder, "vllm", ANCIENT)
    package(folder, "vllm", "0.2.7")
    package(folder, "vllm", "0.30.0", ["transformers<5"])
    for version in ("4.57.0", "5.24.0"):
        package(folder, "transformers", version)
    return folder


def test_a_vllm_that_does_not_fit_is_an_error_and_not_a_release_of_years_ago(clash, tmp_path):
    [transformers] = [line for line in PROJECT["dependencies"] if Requirement(line).name == "transformers"]
    found, said = resolve([transformers, *EXTRAS["vllm"]], tmp_path / "report", clash)
    assert found is None and "Cannot install transformers==5.24.* and vllm==0.30.0" in said
    found, said = resolve([transformers, "vllm"], tmp_path / "report", clash)   # what happens without the floor
    assert found == {"transformers": "5.24.0", "vllm": "0.2.7"}, said


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extras", [["vllm"], sorted(set(EXTRAS) - {"vllm"})], ids=["vllm", "others"])
def test_the_index_of_today_has_every_extra_inside_its_range(tmp_path, extras):
    """vLLM's is an environment of its own; the others fit into one."""
    lines = [*TOOL["first"], *PROJECT["dependencies"], *sum((EXTRAS[extra] for extra in extras), [])]
    found, said = resolve(lines, tmp_path / "report")
    if found is None and any(sign in said for sign in NETWORK):
        pytest.skip("no package index answers here (pip reads PIP_INDEX_URL, HTTPS_PROXY)")
    assert found, said[-2000:]
    for requirement in map(Requirement, lines):
        assert requirement.specifier.contains(found[requirement.name.lower()].split("+")[0])
