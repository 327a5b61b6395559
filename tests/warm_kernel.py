"""Kernels of the smoke runs that are forks of one process which has the packages in memory: 5 s of CPU less for each run.

    python warm_kernel.py --serve SOCKET PARENT     # that process; it ends with PARENT
    python warm_kernel.py -f CONNECTION_FILE        # what the runner starts ($SAGELIB_KERNEL): asks it for a kernel

What the runner started stays, and stands for the kernel: it ends with the kernel's exit code, the kernel ends when it is
killed. Without a server (at $WARM_KERNELS) it becomes the usual kernel. The tests of the runner use the usual ones.
"""
import json
import os
import select
import signal
import socket
import sys

STATE = 1 << 20   # bytes of a request, at most


# ---------------------------------------------------------------- the process that the runner starts

def ask(path):
    """The exit code of a kernel with this process's arguments, environment, directory and streams."""
    from sagelib.kernel import die_with_parent
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})   # as sagelib.kernel does
    die_with_parent(signal.SIGKILL, int(os.environ["SAGELIB_RUNNER"]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(path)
        except OSError:   # it is not ready, or has ended
            os.execv(sys.executable, [sys.executable, "-P", "-m", "sagelib.kernel", *sys.argv[1:]])
        state = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
        socket.send_fds(connection, [json.dumps(state).encode()], [0, 1, 2])
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda number, frame: connection.send(str(int(number)).encode()))
        answer = connection.recv(64)
    if not answer:
        return 1
    code = int(answer)
    if code < 0:   # killed: this process ends the same way
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


# ---------------------------------------------------------------- the process that has it all in memory

def serve(path, parent):
    from sagelib.kernel import die_with_parent
    die_with_parent(signal.SIGKILL, parent)
    import datasets  # noqa: F401
    import ipykernel.kernelapp  # noqa: F401
    import pandas  # noqa: F401
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.qwen2  # noqa: F401
    from trl import GRPOTrainer, SFTTrainer  # noqa: F401
    assert "matplotlib" not in sys.modules   # it reads $MPLBACKEND when it is imported

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)   # keepers are reaped by the system
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os._exit(keep(connection))
            connection.close()


def keep(connection):
    """Starts one kernel, passes signals on to it, and tells how it ended; kills it when nobody asks any more."""
    from sagelib.kernel import die_with_parent
    data, streams, _, _ = socket.recv_fds(connection, STATE, 3)
    keeper, kernel = os.getpid(), os.fork()
    if kernel == 0:
        connection.close()
        die_with_parent(signal.SIGKILL, keeper)
        become(json.loads(data), streams)
    handle = os.pidfd_open(kernel)
    while True:
        ready, _, _ = select.select([connection, handle], [], [])
        if handle in ready:
            connection.send(str(os.waitstatus_to_exitcode(os.waitpid(kernel, 0)[1])).encode())
            return 0
        sign = connection.recv(64)
        os.kill(kernel, int(sign) if sign else signal.SIGKILL)
        if not sign:
            os.waitpid(kernel, 0)
            return 0


def become(state, streams):
    """This process is the kernel; does not return."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(state["env"])
    os.chdir(state["cwd"])
    sys.argv = ["ipykernel_launcher", *state["argv"]]
    code = 1
    try:
        from ipykernel import kernelapp
        kernelapp.launch_new_instance()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(ask(os.environ["WARM_KERNELS"]))
