"""Linux namespaces for the engine's processes, through ctypes (the engine's Python has no os.unshare).

Two steps, because the judge may see the ground truth and the agent may not:
  enter_outer   server and judge: own user and mount namespace, no network, every file system read-only, a bounded
                scratch tmpfs that vanishes with the last process (nothing to clean up, even after kill -9)
  show_only     server and agents: a new root that holds the engine, the agents' data and the system's libraries, nothing else:
                no ground truth, no home directory, no other files of the machine
  lock_episode  one agent: its own process tree (PID namespace), its own output directory as the whole scratch, of the
                world's data its own task, an empty /proc, no capabilities (so nothing can be uncovered) and resource limits
What is not attempted: a system-call filter. A kernel bug, or CPU caches, are outside this model.
"""

import ctypes
import os
import resource
import signal
import sys

NEWNS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 1, 2, 4, 0x1000, 0x2000, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
SYS_MOUNT_SETATTR = 442  # the same number on every Linux architecture; Linux 5.12 and later
libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [word.encode() if word else None for word in (source, target, kind, options)]
    _check(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def _read_only(path: str, on: bool, recursive: bool) -> None:
    """mount_setattr(2): unlike a read-only remount it covers everything mounted below in one call."""
    attributes = (ctypes.c_uint64 * 4)(1 if on else 0, 0 if on else 1, 0, 0)
    flags = 0x8000 if recursive else 0
    _check(
        libc.syscall(SYS_MOUNT_SETATTR, -100, path.encode(), flags, attributes, ctypes.c_size_t(32)),
        f"read-only {path}",
    )


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument; OSError when the kernel refuses."""
    _check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def die_with_parent() -> None:
    """The calling process is killed when its parent ends, for whatever reason."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def enter_outer(scratch_mb: int) -> str:
    """Enter the outer namespaces and return the private scratch directory. OSError when the kernel forbids it.

    Must run single-threaded. On OSError the process may hold part of the namespaces: it must not go on, see `possible`.
    """
    uid, gid = os.getuid(), os.getgid()
    _check(libc.unshare(NEWUSER | NEWNS | NEWNET), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    scratch = next(path for path in ("/dev/shm", "/mnt", "/media", "/srv") if os.path.isdir(path))
    _mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={scratch_mb}m,mode=700")
    _read_only("/", on=True, recursive=True)
    _read_only(scratch, on=False, recursive=False)
    return scratch


def possible() -> str | None:
    """None when the whole sandbox works here, else the reason why not (tried in a child: nothing is half done)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            scratch = enter_outer(16)
            show_only(system_paths(), scratch)
            _check(libc.unshare(NEWPID), "unshare pid")
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        reason = pipe.read()
    os.waitpid(pid, 0)
    return reason or None


def system_paths() -> list[str]:
    """What a Python process needs of the machine, besides its own environment."""
    libraries = ["/usr", *(f"/{name}" for name in os.listdir("/") if name.startswith(("lib", "bin")))]
    settings = [f"/etc/{name}" for name in ("passwd", "group", "hosts", "localtime", "ld.so.cache", "nsswitch.conf")]
    devices = [f"/dev/{name}" for name in ("null", "zero", "random", "urandom")]
    pythons = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    return [*libraries, *settings, *devices, "/proc", *pythons, *(p for p in sys.path if os.path.isabs(p))]


def show_only(paths: list[str], scratch: str) -> None:
    """Change this process's root (and that of its later children) to one that holds only ``paths``, each where it was.

    Mounts keep their read-only flag. The old root stays below the new one, out of reach: `lock_episode` takes the right
    to change roots and mounts.
    """
    _check(libc.unshare(NEWNS), "unshare mounts")
    root = os.path.join(scratch, "root")
    os.mkdir(root, 0o755)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    shown: list[str] = []
    for path in sorted({scratch, *paths} | {os.path.realpath(p) for p in paths}):
        inside = root + path
        if not os.path.lexists(path) or any(path.startswith(one.rstrip("/") + "/") for one in shown):
            continue
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        if os.path.islink(path):  # /lib -> usr/lib; what it means is in the list, too
            os.symlink(os.readlink(path), inside)
            continue
        if os.path.isdir(path):
            os.mkdir(inside)
        else:
            os.close(os.open(inside, os.O_CREAT))
        _mount(path, inside, None, MS_BIND if path == scratch else MS_BIND | MS_REC)  # the new root is in the scratch itself
        shown.append(path)
    here = os.getcwd()
    _read_only(root, on=True, recursive=False)
    os.chdir(root)
    _mount(".", "/", None, MS_MOVE)
    _check(libc.chroot(b"."), "chroot")
    os.chdir(here if os.path.isdir(here) else "/")


def new_process_tree() -> None:
    """The next forked child is process 1 of its own PID namespace: it sees no other, and its tree dies with it."""
    _check(libc.unshare(NEWPID), "unshare pid")


def lock_episode(scratch: str, own: str, data: str, task_id: str) -> None:
    """`own` becomes the whole scratch, `data` holds one task, /proc is empty, and no capability is left to undo any of it."""
    _check(libc.unshare(NEWNS), "unshare mounts")
    task, kept = os.path.join(data, "tasks", task_id), os.path.join(own, "task")
    os.mkdir(kept)
    _mount(task, kept, None, MS_BIND)
    _mount("tmpfs", data, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=755")
    os.makedirs(task)
    _mount(kept, task, None, MS_MOVE)
    os.rmdir(kept)
    _read_only(data, on=True, recursive=False)
    _mount(own, scratch, None, MS_BIND)
    _mount("tmpfs", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last capability this kernel knows
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capset(header, none), "capset")


def limit(memory_mb: int, file_mb: int) -> None:
    """Bound address space, file size, processes and threads, and core dumps of the calling process and its children."""
    for kind, value in (
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_FSIZE, file_mb << 20),
        (resource.RLIMIT_NPROC, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
