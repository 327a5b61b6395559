"""One server process of a `text_pool`: started when it is needed, asked a line at a time, killed when it does not answer."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sagelib.runs import ROOT

ENDED = "the world's process has ended"


class Worker:
    """One server process and the lines that went to and fro. It is started by the first request and after a death."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, seconds: float) -> None:
        self.command, self.env, self.seconds = list(command), env, seconds
        self.process: subprocess.Popen | None = None
        self.lives, self.deadline, self.read = 0, 0.0, b""

    def start(self) -> None:
        """Afterwards a process is there: the old one, or a new one if that has ended."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.read, self.lives = b"", self.lives + 1

    def send(self, request: dict[str, Any]) -> bool:
        """Whether the request is on its way."""
        self.deadline = time.monotonic() + self.seconds
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            return True
        except (BrokenPipeError, ValueError, AttributeError):
            return False

    def reply(self) -> dict[str, Any]:
        """The answer; {"error": why} when the process ended or took too long (then it is killed: its next line is late)."""
        out = self.process.stdout.fileno()
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            while b"\n" not in self.read:
                if not ready.select(max(0.0, self.deadline - time.monotonic())):
                    self.process.kill()
                    self.process.wait()
                    return {"error": f"the world gave no answer within {self.seconds:g} s"}
                more = os.read(out, 1 << 16)
                if not more:
                    return {"error": ENDED}
                self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return json.loads(line)

    def stop(self) -> None:
        """No process is left. One that does not end by itself when its input closes is killed."""
        if self.process is None:
            return
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process = None
