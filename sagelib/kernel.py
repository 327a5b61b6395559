"""Starts a Jupyter kernel that does not outlive the runner (python -m sagelib.kernel -f CONNECTION_FILE)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(sign: signal.Signals, parent: int) -> None:
    """The kernel of the operating system sends `sign` to this process when `parent` ends (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(sign), 0, 0, 0)
        if os.getppid() != parent:   # it ended before we asked
            os.kill(os.getpid(), sign)


if __name__ == "__main__":
    # The runner blocks these to wait for them in a thread; a child would inherit the block.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    die_with_parent(signal.SIGKILL, int(os.environ["SAGELIB_RUNNER"]))
    os.execv(sys.executable, [sys.executable, "-m", "ipykernel_launcher", *sys.argv[1:]])
