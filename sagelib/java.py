"""Java: which one a world's engine would run on, and what to install where there is none. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

PACKAGE = "default-jre-headless"   # of Debian and Ubuntu


def find() -> str | None:
    """The java program: of $JAVA_HOME if that is set, else the first on the path; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java") if home else "java")


def version(program: str) -> tuple[int, str]:
    """(17, "17.0.15"); the old way of counting, 1.8.0_392, is (8, ...); (0, what it said) when it says no version."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, str(error)
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    return (int(found[2]), found[1]) if found else (0, said.strip()[:200])


def missing(oldest: int) -> str | None:
    """Why no Java of at least this version can be run here, with the fix, in one line; None when there is one."""
    program = find()
    fix = f"Fix: install Java {oldest} or newer (Debian, Ubuntu: sudo apt install {PACKAGE}), then run the same command again."
    if program is None:
        home = os.environ.get("JAVA_HOME")
        where = f"$JAVA_HOME = {home} has no bin/java" if home else "there is no java on the path"
        return f"it runs on Java, and {where}. {fix}"
    number, text = version(program)
    if number < oldest:
        return f"it runs on Java {oldest} or newer, and {program} is {text or 'no Java'}. {fix}"
    return None
