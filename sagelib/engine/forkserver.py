"""The event loop of the engine's fork server (server.py describes its processes and its wire format)."""

import collections
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field

import episode
import sandbox

OPEN_SECONDS = 60.0
EPISODE_MB = 64  # room for what one episode saves: below 1 MB in the mini-world
REPLY_BYTES_PER_CHAR = 12  # JSON escapes of one character, doubled


def clock() -> float:
    """Monotonic seconds from a function that the engine's time freezing does not replace."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(eq=False)
class Episode:
    """The server's view of one episode."""

    number: int
    channel: socket.socket
    group: "Group"
    pid: int | None = None
    forked: bool = False  # its process has said that it is ready
    buffer: bytes = b""
    job: "Job | None" = None  # the step that runs now

    @property
    def ready(self) -> bool:
        """Its process waits for code, and its process id is known."""
        return self.forked and self.pid is not None


@dataclass(eq=False)
class Group:
    """The copies of one open request, while the template lives."""

    episodes: list[Episode]
    directory: str
    job: "Job"
    pid: int | None = None
    reason: str = ""


@dataclass(eq=False)
class Job:
    """A queued request that takes a slot: an open (its group is set when it starts) or a step."""

    request: dict
    began: float = field(default=0.0)
    deadline: float = field(default=0.0)
    group: Group | None = None


class Server:
    """The event loop. `run` returns when the client has gone."""

    def __init__(self, control: socket.socket, settings: episode.Settings, parallel: int, reason: str | None) -> None:
        self.control, self.settings, self.parallel, self.reason = control, settings, parallel, reason
        self.episodes: dict[int, Episode] = {}
        self.pids: dict[int, Episode] = {}
        self.groups: set[Group] = set()
        self.queue: collections.deque[Job] = collections.deque()
        self.running: set[Job] = set()
        self.inbox, self.parent = b"", os.getppid()
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, None)

    # ------------------------------------------------------------------ the loop
    def run(self) -> None:
        """Serve until the control socket closes or the client's process has gone."""
        while os.getppid() == self.parent:
            self._start_jobs()
            wait = min([job.deadline for job in self.running], default=clock() + 1.0) - clock()
            for key, _ in self.selector.select(max(0.0, min(wait, 1.0 if not self.groups else 0.02))):
                if key.data is not None:
                    self._read_episode(key.data)
                elif not self._read_control():
                    return
            self._reap()
            now = clock()
            for job in [job for job in self.running if now > job.deadline]:
                self._expired(job)

    def _read_control(self) -> bool:
        chunk = self.control.recv(1 << 20)
        *lines, self.inbox = (self.inbox + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["op"] in ("open", "step"):
                self.queue.append(Job(request))
            elif request["op"] == "close":
                self._close(request["episodes"])
                self._answer(request, {})
            else:
                self._answer(request, self._stats())
        return bool(chunk)

    def _answer(self, request: dict, reply: dict) -> None:
        self.control.sendall(json.dumps({"id": request["id"], **reply}).encode() + b"\n")

    def _finish(self, job: Job, reply: dict) -> None:
        self.running.discard(job)
        self._answer(job.request, {**reply, "seconds": clock() - job.began})

    def _start_jobs(self) -> None:
        while self.queue and len(self.running) < self.parallel:
            job = self.queue.popleft()
            job.began = clock()
            self.running.add(job)
            if job.request["op"] == "open":
                job.deadline = job.began + OPEN_SECONDS
                self._open(job)
            else:
                job.deadline = job.began + self.settings.step_s
                self._step(job)

    # ------------------------------------------------------------------ opening a group
    def _open(self, job: Job) -> None:
        numbers = job.request["episodes"]
        group = Group([], os.path.join(self.settings.scratch, f"group{numbers[0]}"), job)
        theirs = []
        try:
            for number in numbers:
                self._make_directory(number)
                ours, other = socket.socketpair()
                theirs.append((self._directory(number), other))
                group.episodes.append(Episode(number, ours, group))
            group.pid = self._fork_template(job.request["task_id"], group, theirs)
        except OSError as error:
            for member in group.episodes:
                member.channel.close()
            return self._finish(job, dict(ok=False, reason=f"cannot start a process: {error}"))
        finally:
            for _, other in theirs:
                other.close()
        job.group = group
        self.groups.add(group)
        for member in group.episodes:
            self.episodes[member.number] = member
            self.selector.register(member.channel, selectors.EVENT_READ, member)

    def _fork_template(self, task_id: str, group: Group, theirs: list[tuple[str, socket.socket]]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:  # whatever happens, a child never runs the server's own code again
            self.selector.close()
            self.control.close()
            for member in [*self.episodes.values(), *group.episodes]:
                member.channel.close()
            sandbox.die_with_parent()
            episode.silence()
            episode.template(task_id, group.directory, theirs, self.settings)
        except BaseException:
            theirs[0][1].sendall(json.dumps({"failed": traceback.format_exc()[-2000:]}).encode() + b"\n")
        finally:
            os._exit(0)

    def _settle(self, group: Group) -> None:
        """Answer an open once its template has gone and each copy is ready or lost."""
        lost = [member for member in group.episodes if member.number not in self.episodes]
        if group.pid is not None or any(not member.ready for member in group.episodes if member not in lost):
            return
        self.groups.discard(group)
        shutil.rmtree(group.directory, ignore_errors=True)
        if lost:
            print(f"open {group.job.request['task_id']} failed: {group.reason}", file=sys.stderr, flush=True)
            self._close([member.number for member in group.episodes])
        self._finish(group.job, dict(ok=not lost, reason=group.reason or "an episode's process died while it opened"))

    # ------------------------------------------------------------------ steps
    def _step(self, job: Job) -> None:
        target = self.episodes.get(job.request["episode"])
        if target is None:
            return self._finish(job, self._fault("died", "the episode's process is gone"))
        target.job = job
        try:
            target.channel.setblocking(True)
            target.channel.settimeout(self.settings.step_s)
            target.channel.sendall(json.dumps({"code": job.request["code"]}).encode() + b"\n")
        except OSError:
            self._lost(target, "died", "the episode's process is gone")

    def _read_episode(self, member: Episode) -> None:
        if member.number not in self.episodes:
            return
        try:
            chunk = member.channel.recv(1 << 20)
        except OSError:
            chunk = b""
        member.buffer += chunk
        if not chunk:
            return self._lost(member, "died", "the episode's process died")
        if len(member.buffer) > self.settings.output_chars * REPLY_BYTES_PER_CHAR + (1 << 16):
            return self._lost(member, "died", "the episode's process sent more than its output limit")
        *lines, member.buffer = member.buffer.split(b"\n")
        for line in lines:
            if member.number in self.episodes:
                self._message(member, line)

    def _message(self, member: Episode, line: bytes) -> None:
        """One line from an episode's process, which agent code may have forged: anything odd ends the episode."""
        try:
            message = json.loads(line)
            if "failed" in message:
                member.group.reason = member.group.reason or str(message["failed"])
                return self._lost(member, *self._blame(str(message["failed"])))
            if not member.ready:
                return self._opened(member, message)
            reply = dict(
                output=str(message["output"]),
                error=message["error"] and str(message["error"]),
                status={"ok": "ok", "error": "error", "timeout": "timeout"}[message["status"]],
                truncated=bool(message["truncated"]),
                done=bool(message["done"]),
                alive=True,
            )
        except (ValueError, KeyError, TypeError):
            return self._lost(member, "died", "the episode's process broke the protocol")
        if member.job is None:
            return self._lost(member, "died", "the episode's process spoke without being asked")
        job, member.job = member.job, None
        self._finish(job, reply)

    def _opened(self, member: Episode, message: dict) -> None:
        if "pid" in message:
            member.pid = message["pid"]
            self.pids[member.pid] = member
        else:
            member.forked = True
        if member.ready:
            self._settle(member.group)

    def _blame(self, trace: str) -> tuple[str, str]:
        """A full scratch is our fault; any other failure inside an episode's process is the agent's code."""
        if os.statvfs(self.settings.scratch).f_bavail * os.statvfs(self.settings.scratch).f_bsize < 4 << 20:
            return "env_failure", f"the scratch directory is full: {trace.strip().splitlines()[-1]}"
        return "died", f"the engine no longer works in this episode: {trace.strip().splitlines()[-1]}"

    def _expired(self, job: Job) -> None:
        if job.group is not None:
            job.group.reason = f"opening took more than {OPEN_SECONDS:.0f} s"
            if job.group.pid:
                os.kill(job.group.pid, signal.SIGKILL)
            for member in job.group.episodes:
                self._lost(member, "env_failure", job.group.reason)
            return
        member = self.episodes[job.request["episode"]]
        self._lost(member, "timeout", f"killed: the step took more than {self.settings.step_s:g} s")

    @staticmethod
    def _fault(status: str, reason: str) -> dict:
        return dict(output="", error=reason, status=status, truncated=False, done=False, alive=False)

    # ------------------------------------------------------------------ endings
    def _lost(self, member: Episode, status: str, reason: str) -> None:
        """End an episode's processes; its directory stays for the judge until the client closes it."""
        if self.episodes.pop(member.number, None) is None:
            return
        self.selector.unregister(member.channel)
        member.channel.close()
        self.kill(member)
        if member.job:
            self._finish(member.job, self._fault(status, reason))
            member.job = None
        if member.group in self.groups:
            self._settle(member.group)

    def kill(self, member: Episode) -> None:
        """Kill an episode's process tree, if it has not been reaped yet."""
        if member.pid in self.pids:  # not reaped yet, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                member = self.pids.pop(pid, None)
                if member:
                    self._lost(member, "died", "the episode's process died")
                for group in [group for group in self.groups if group.pid == pid]:
                    group.pid = None
                    for lost in [one for one in group.episodes if one.pid is None and not one.buffer]:
                        self._read_episode(lost)
                    self._settle(group)

    def _close(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self.episodes:
                self._lost(self.episodes[number], "died", "closed")
            sandbox.drop_room(self._directory(number))

    def _make_directory(self, number: int) -> None:
        if self.settings.contained:
            sandbox.make_room(self._directory(number), EPISODE_MB)
        else:
            os.mkdir(self._directory(number))

    def _directory(self, number: int) -> str:
        return os.path.join(self.settings.scratch, f"episode{number}")

    def _stats(self) -> dict:
        self._reap()
        pss = {pid: _pss_mb(pid) for pid in [os.getpid(), *self.pids]}
        rooms = [os.path.join(self.settings.scratch, name) for name in os.listdir(self.settings.scratch)]
        disks = {os.stat(path).st_dev: os.statvfs(path) for path in [self.settings.scratch, *rooms]}
        return dict(
            processes=len(pss) + 2,  # the judge and its guard
            pss_mb=sum(pss.values()),
            episodes=len(self.episodes),
            queued=len(self.queue),
            episode_pids=sorted(self.pids, key=lambda pid: self.pids[pid].number),
            server_pid=os.getpid(),
            contained=self.settings.contained,
            uncontained_reason=self.reason,
            scratch_mb=sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks.values()) / 2**20,
        )


def _pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024
    return 0.0
