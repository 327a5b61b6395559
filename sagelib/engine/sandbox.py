"""Linux namespaces for the engine's processes, through ctypes (the engine's Python has no os.unshare).

Steps, because the judge may see the ground truth and the agent may not:
  enter_outer   server and judge: own user, mount and IPC namespace, no network, every file system read-only, a bounded
                scratch tmpfs that vanishes with the last process (nothing to clean up, even after kill -9)
  keep_only     server and agents: of the machine's files only those are left that the engine needs: no disk, no /tmp, no
                home, no socket of another service (reading and connecting need no write permission on a file system)
  hide          server and agents: what is private below the files that were kept is covered by empty mounts
  make_room     one agent's output directory is a file system of its own, so that filling it hurts nobody else
  lock_episode  one agent: its own process tree (PID namespace), its own output directory as the whole scratch, of the
                world's data its own task, an empty /proc, no capabilities (so nothing can be uncovered), resource limits,
                a filter of system calls
The filter refuses new processes (for root, whom RLIMIT_NPROC does not bind, nothing else would) and what leaves memory
behind that no limit counts. It is written for x86-64 and 64-bit ARM; on others the rest has to do. A kernel bug, or CPU
caches, are outside this model.
"""

import ctypes
import os
import resource
import shutil
import signal
import struct

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE, MS_SHARED = (
    *(1, 2, 4, 0x1000, 0x4000),
    *(1 << 18, 1 << 19, 1 << 20),
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38
SYSTEM_FILES = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix", "/gnu", "/proc"),
    *(f"/etc/{name}" for name in "ld.so.cache localtime timezone mime.types passwd group nsswitch.conf".split()),
    *(f"/dev/{name}" for name in "null zero full random urandom".split()),
)  # what Python may ask for later, beside its own directories
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
    _check(libc.unshare(NEWUSER | NEWNS | NEWNET | NEWIPC), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    scratch = next(path for path in ("/dev/shm", "/mnt", "/media", "/srv") if os.path.isdir(path))
    _mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={scratch_mb}m,mode=700")
    _mount("none", scratch, None, MS_SHARED)  # the judge will see the rooms that the server makes in it
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
            keep_only([scratch])
            make_room(os.path.join(scratch, "own"), 1)
            new_process_tree()
            lock_episode(scratch, os.path.join(scratch, "own"))
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        reason = pipe.read()
    os.waitpid(pid, 0)
    return reason or None


def keep_only(paths: list[str]) -> None:
    """Of the machine's files only these and SYSTEM_FILES are left, for this process and its later children only."""
    _check(libc.unshare(NEWNS), "unshare mounts")
    wanted = sorted({one for path in (*SYSTEM_FILES, *paths) for one in (os.path.abspath(path), os.path.realpath(path))})
    kept = {path: os.open(path, os.O_PATH) for path in wanted if os.path.exists(path)}  # opened before they are covered
    for entry in list(os.scandir("/")):
        if entry.path in kept or entry.is_symlink():
            continue
        if entry.is_dir():
            inside = {path: fd for path, fd in kept.items() if path.startswith(entry.path + "/")}
            _keep_inside(entry.path, inside)
        else:
            _mount(f"/proc/self/fd/{kept['/dev/null']}", entry.path, None, MS_BIND)
    for fd in kept.values():
        os.close(fd)


def _keep_inside(directory: str, kept: dict[str, int]) -> None:
    """Cover one directory, and put the given paths (open descriptors) back to their places in it."""
    _mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path, fd in kept.items():  # sorted: a directory comes before what is in it
        if os.path.exists(path):
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT))
        _mount(f"/proc/self/fd/{fd}", path, None, MS_BIND | MS_REC)
    _read_only(directory, on=True, recursive=False)


def hide(paths: list[str]) -> None:
    """Cover each existing directory with an empty read-only one, for this process and its later children only."""
    for path in paths:
        if os.path.isdir(path):
            _mount("tmpfs", os.path.realpath(path), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")


def make_room(path: str, megabytes: int) -> None:
    """A new directory with room of its own: full, it fails its user and nobody else."""
    os.mkdir(path)
    _mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={megabytes}m,nr_inodes=4096,mode=700")


def drop_room(path: str) -> None:
    """The room and all that is in it are gone, whoever still uses it. A plain directory will do, and none."""
    libc.umount2(path.encode(), MNT_DETACH)
    shutil.rmtree(path, ignore_errors=True)


def new_process_tree() -> None:
    """The next forked child is process 1 of its own PID namespace: it sees no other, and its tree dies with it."""
    _check(libc.unshare(NEWPID), "unshare pid")


def lock_episode(scratch: str, own: str, data: str | None = None, task_id: str = "") -> None:
    """`own` becomes the whole scratch, `data` holds one task, /proc is empty, no capability is left to undo any of it."""
    _check(libc.unshare(NEWNS), "unshare mounts")
    _mount("none", "/", None, MS_REC | MS_SLAVE)  # nothing of ours reaches the server; a dropped room is dropped here too
    if data:  # the engine has read the rest: the base databases, other tasks
        task = os.path.join(data, "tasks", task_id)
        kept = os.open(task, os.O_PATH)
        _keep_inside(data, {task: kept})
        os.close(kept)
    _mount(own, scratch, None, MS_BIND)
    _mount("tmpfs", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last capability this kernel knows
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capset(header, none), "capset")
    _filter_calls()


# x86-64 and 64-bit ARM number of each refused call; None where there is none
REFUSED = {
    **{"fork": (57, None), "vfork": (58, None)},  # clone and clone3 are below
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_open": (434, 434), "pidfd_getfd": (438, 438)},
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265)},
    **{"keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218)},  # the user's keys
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186)},
    **{"semget": (64, 190), "mq_open": (240, 180)},  # memory outside RLIMIT_AS, or alive after its maker
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425)},
}
CLONE, CLONE3, CLONE_THREAD = (56, 220), (435, 435), 0x10000
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
LOAD, EQUAL, AT_LEAST, HAS_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = 1, 38


def _filter_calls() -> None:
    """Refuse the calls of REFUSED and new processes (threads are allowed), for this process and all that it starts."""
    if os.uname().machine not in ARCHITECTURES:
        return
    column, architecture = ARCHITECTURES[os.uname().machine]

    def unless(test: int, value: int, error: int) -> list[tuple[int, int, int, int]]:
        return [(test, 0, 1, value), (RETURN, 0, 0, ERRNO | error)]  # (code, jump if true, jump if false, value)

    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, ERRNO | EPERM), (LOAD, 0, 0, 0)]
    program += unless(AT_LEAST, 0x40000000, EPERM)  # the other numbering of x86-64
    program += unless(EQUAL, CLONE3[column], ENOSYS)  # its flags are out of reach; the C library falls back to clone
    for number in (numbers[column] for numbers in REFUSED.values()):
        program += unless(EQUAL, number, EPERM) if number is not None else []
    program += [(EQUAL, 0, 3, CLONE[column]), (LOAD, 0, 0, 16), (HAS_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, ERRNO | EPERM)]
    program += [(RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    _check(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), header, 0, 0), "system-call filter")


def limit(memory_mb: int, file_mb: int) -> None:
    """Bound address space, file size, open files, threads and core dumps of the calling process and its children."""
    for kind, value in (
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_FSIZE, file_mb << 20),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
