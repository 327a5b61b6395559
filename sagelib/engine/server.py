"""The engine's fork server: one process per episode, a world opened once per group, limits enforced from outside.

Started by sagelib/appworld.py with the AppWorld environment's interpreter; the wire format is one JSON object per line:
  control socket   {"id","op":"open","task_id","episodes":[ints]}  -> {"id","ok":bool,"reason"}
                   {"id","op":"step","episode","code"}             -> {"id", the fields of StepResult, "alive"}
                   {"id","op":"close","episodes":[ints]}           -> {"id"}
                   {"id","op":"stats"}                             -> {"id","processes","pss_mb","contained",...}
  judge socket     see judge.py
Replies come in any order. The server ends, and with it every other process, when the control socket closes.

Process tree: server (forkserver.py; never runs agent code, never sees ground truth) -> the judge's guard -> judge -> its workers
                                                              -> template (per open, exits) -> episodes
A single episode has no template: it opens the world in its own process.
A step over its limit is killed with its whole process tree. At most `parallel` opens and steps run at once; the others
wait in a queue, so that a step's clock is not eaten by its neighbours.

What an episode costs: benchmarks/engine_cost.py. In groups of 8 it is about 140 ms of CPU, of which forks and the memory that
is copied after them are a third; 66 processes hold 2.4 GB PSS, 64 episodes of 64 different tasks held 4.5 GB.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import traceback

import sandbox


def main() -> None:
    """Prepare scratch and sandbox, warm the engine, start the judge's guard, serve."""
    config = json.loads(sys.argv[1])
    control, channel = (socket.socket(fileno=config[name]) for name in ("control_fd", "judge_fd"))
    reason = sandbox.possible() if config["sandbox"] else "switched off by the caller"
    scratch = (
        sandbox.enter_outer(config["scratch_mb"])
        if reason is None
        else tempfile.mkdtemp(prefix="sagelib-engine-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    )
    if reason is not None:
        print(
            f"WARNING: agent code is NOT CONTAINED on this machine ({reason}): it can read the ground truth, the home "
            "directory and the network. Do not trust scores of agents that might look for it.",
            file=sys.stderr,
            flush=True,
        )
    os.environ["IPYTHONDIR"] = os.environ["HOME"] = os.environ["TMPDIR"] = scratch
    import episode  # only now: namespaces want a process that never had threads
    import forkserver
    import judge
    import speed

    speed.patch()
    settings = episode.Settings(scratch, reason is None, **config["limits"])
    warm_directory = os.path.join(scratch, "warm")
    task_id = episode.warm(warm_directory)
    sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
    guard_pid = os.fork()
    if guard_pid == 0:
        try:
            sandbox.die_with_parent()
            control.close()
            judge.guard(channel, config["judge_root"], config["parallel"], (task_id, warm_directory))
        finally:
            os._exit(0)
    channel.close()
    if settings.contained:
        sandbox.keep_only([scratch, os.environ["APPWORLD_ROOT"], sys.prefix, sys.base_prefix, *filter(None, sys.path)])
        sandbox.hide(config["hide"])
    control.sendall(
        json.dumps(
            dict(
                id=0, scratch=scratch, contained=settings.contained, reason=reason, pid=os.getpid(), guard_pid=guard_pid
            )
        ).encode()
        + b"\n"
    )
    server = forkserver.Server(control, settings, config["parallel"], reason)
    try:
        server.run()
    except Exception:
        traceback.print_exc()  # to the log; the finally below ends the process at once
    finally:
        for member in list(server.episodes.values()):
            server.kill(member)
        if not settings.contained:  # the sandbox's scratch is gone with its last process
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    main()
