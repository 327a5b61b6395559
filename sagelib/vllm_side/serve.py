"""Runs in vLLM's environment: its server, which ends with all it started when the other end of standard input is gone.

So no server is left behind, however the process that started it dies. Options are vLLM's own. The module is run and not the
command `vllm`: that asks for the version of a package vllm, and the CPU build is not called so.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading


def end_with_owner() -> None:
    """Returns never: kills this process's group at the end of standard input."""
    while os.read(0, 1024):   # not sys.stdin: its lock would be held when the server ends by itself
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":   # the engine's process imports this file, too
    threading.Thread(target=end_with_owner, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
