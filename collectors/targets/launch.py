"""Start a command that waits until the profiler is ready, and nothing else: it is not traced while it starts.

A forked child waits for one byte before it executes the command. It keeps the standard streams, the terminal's
foreground group and the signal dispositions that the profiler was started with.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import resource
import shlex
import signal
import threading
import time
import warnings
from collections.abc import Mapping, Sequence

from pyprof.errors import PyprofError
from pyprof.records import dataclass, field


class CommandNotFound(PyprofError):
    """The command to record does not exist. Exit code as in a shell."""

    reason = "command_not_found"
    exit_code = 127


class CommandNotExecutable(PyprofError):
    """The command to record exists and cannot be executed. Exit code as in a shell."""

    reason = "command_not_executable"
    exit_code = 126


@dataclass(frozen=True, slots=True)
class User:
    """Whom the command runs as when the profiler was started with sudo."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    environment: dict[str, str]


def calling_user(environment: Mapping[str, str]) -> User | None:
    """The user who called sudo; None if we are not root through sudo."""
    if os.geteuid() != 0:
        return None
    try:
        uid, gid = int(environment["SUDO_UID"]), int(environment["SUDO_GID"])
    except (KeyError, ValueError):
        return None
    if uid == 0:
        return None
    kept = {key: value for key, value in environment.items() if not key.startswith("SUDO_")}
    groups: tuple[int, ...] = (gid,)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        pass
    else:
        groups = tuple(os.getgrouplist(entry.pw_name, gid))
        kept |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return User(uid, gid, groups, kept)


@dataclass
class Launched:
    """A child that waits for release(). pid: of the command, too."""

    pid: int
    command: tuple[str, ...]
    _go: int
    _failed: int
    _status: int | None = field(default=None)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waits(self) -> bool:
        """Has it not begun yet?"""
        return self._go >= 0

    def release(self) -> None:
        """Let the command begin; returns when it has. Safe to call twice.

        Raises CommandNotFound, CommandNotExecutable.
        """
        if not self.waits:
            return
        os.set_blocking(self._go, False)
        with contextlib.suppress(OSError):  # the child was killed while it waited: wait() tells
            os.write(self._go, b"!")
        os.close(self._go)
        self._go = -1
        report = b""
        while chunk := os.read(self._failed, 64):
            report += chunk
        os.close(self._failed)
        if report:
            self.wait()
            raise _failure(self.command[0], int(report))

    def cancel(self) -> None:
        """Never begin the command. Safe to call after release()."""
        if self.waits:
            os.close(self._go)
            os.close(self._failed)
            self._go = -1
            self.wait()

    def send_signal(self, number: int) -> None:
        """Hand a signal on, unless the command has ended."""
        if self._status is None and self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self, patience_s: float) -> None:
        """End the command if it runs, by SIGTERM, after patience_s seconds by SIGKILL; or never begin it."""
        self.cancel()
        self.send_signal(signal.SIGTERM)
        until = time.monotonic() + patience_s
        while self.poll() is None:
            if time.monotonic() > until:
                self.send_signal(signal.SIGKILL)
            time.sleep(0.01)

    def poll(self) -> int | None:
        """Exit code as a shell gives it (128 + signal), None while the command runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end; exit code as a shell gives it."""
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> int | None:
        """Looks before it collects: a stop of the sampler's shows in wait(2), and is the sampler's to collect."""
        while self._status is None:
            try:
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options)
                if found is not None and found.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                    with self._lock:
                        if self._status is None:
                            _, self._status = os.waitpid(self.pid, 0)
                elif options & os.WNOHANG:
                    return None
                else:
                    time.sleep(0.001)
            except ChildProcessError:
                with self._lock:
                    self._status = self._status or 0
        code = os.waitstatus_to_exitcode(self._status)
        return 128 - code if code < 0 else code


def launch(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Launched:
    """Fork a child that becomes the command once it is released.

    Raises CommandNotFound, CommandNotExecutable (at once where that can be seen, else from release()).
    """
    import shutil

    env = dict(os.environ if environment is None else environment)
    user = calling_user(env)
    if user is not None:
        env = user.environment
    if not command or not command[0]:
        raise CommandNotFound("there is no command to run", "pyprof record -- COMMAND ARGUMENTS…")
    if "/" not in command[0] and shutil.which(command[0], path=env.get("PATH", os.defpath)) is None:
        raise _failure(command[0], errno.ENOENT)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    go_read, go_write = os.pipe()
    failed_read, failed_write = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads (numpy's); the child only execs
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = errno.EIO
        try:
            os.close(go_write)
            code = _become(command, env, user, go_read, limits)
            os.write(failed_write, str(code).encode())
        finally:
            os._exit(127 if code == errno.ENOENT else 126)
    os.close(go_read)
    os.close(failed_write)
    return Launched(pid, tuple(command), go_write, failed_read)


def _become(command: Sequence[str], env: dict[str, str], user: User | None, go: int, limits: tuple[int, int]) -> int:
    """In the child: wait for the byte, then execute. Returns errno if that fails."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD):
        if callable(signal.getsignal(number)) or number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.read(go, 1) != b"!":
        os._exit(0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        if user is not None:
            os.setgroups(user.groups)
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
        os.execvpe(command[0], list(command), env)
    except OSError as error:
        return error.errno or errno.EIO


def _failure(name: str, number: int) -> PyprofError:
    if number == errno.ENOENT:
        return CommandNotFound(f"there is no command {name!r}", "check the name and PATH")
    message = f"command {name!r} cannot be executed: {os.strerror(number)}"
    return CommandNotExecutable(message, shlex.join(["ls", "-l", name]))
