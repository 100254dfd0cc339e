"""Start of a command that waits until the profiler is ready. The command is not traced while it starts.

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
from pyprof.lazy_dataclasses import dataclass, field


class CommandNotFound(PyprofError):
    """The error that the command to record does not exist. The exit code is the one that a shell would return (127)."""

    reason = "command_not_found"
    exit_code = 127


class CommandNotExecutable(PyprofError):
    """The error that the command to record exists but cannot be executed. The exit code is the one that a
    shell would return (126).
    """

    reason = "command_not_executable"
    exit_code = 126


@dataclass(frozen=True, slots=True)
class User:
    """The user as whom the recorded command runs if the profiler was started with sudo."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    environment: dict[str, str]


def calling_user(environment: Mapping[str, str]) -> User | None:
    """Return the user who called sudo, or None if this process is not root through sudo."""
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
class LaunchedCommand:
    """A child process that executes a command after release(). The command will have the child's pid."""

    pid: int
    command: tuple[str, ...]
    _go: int
    _failed: int
    _status: int | None = field(default=None)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waits(self) -> bool:
        """True if the child has not executed the command yet."""
        return self._go >= 0

    def release(self) -> None:
        """Let the child process execute the command, and return when the command has started. This may be
        called twice.

        Raises:
            CommandNotFound: There is no such command.
            CommandNotExecutable: The command cannot be executed.
        """
        if not self.waits:
            return
        os.set_blocking(self._go, False)
        with contextlib.suppress(OSError):  # the child was killed while it waited, which wait() reports
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
        """End the child process if it has not executed the command yet. This may be called after release()."""
        if self.waits:
            os.close(self._go)
            os.close(self._failed)
            self._go = -1
            self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal to the launched command unless it has ended."""
        if self._status is None and self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self, patience_s: float) -> None:
        """End a running command by SIGTERM, and after patience_s seconds by SIGKILL. A command that was not released is
        never started.
        """
        self.cancel()
        self.send_signal(signal.SIGTERM)
        until = time.monotonic() + patience_s
        while self.poll() is None:
            if time.monotonic() > until:
                self.send_signal(signal.SIGKILL)
            time.sleep(0.01)

    def poll(self) -> int | None:
        """Return the command's exit code as in a shell (128 + signal), or None while the command runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end of the launched command and return its exit code as in a shell."""
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> int | None:
        """Return the command's exit code if it has ended. Only exits are collected: wait(2) also reports
        ptrace stops, which the sampler must collect.
        """
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


def launch(command: Sequence[str], environment: Mapping[str, str] | None = None) -> LaunchedCommand:
    """Fork a child process that executes the command after release().

    Raises:
        CommandNotFound: There is no such command. If that shows only at exec, release() raises the error.
        CommandNotExecutable: The command cannot be executed. If that shows only at exec, release() raises the
            error.
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
        # Python 3.12 warns about threads (numpy's); the child only calls exec
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
    return LaunchedCommand(pid, tuple(command), go_write, failed_read)


def _become(command: Sequence[str], env: dict[str, str], user: User | None, go: int, limits: tuple[int, int]) -> int:
    """Wait in the child process for the parent's byte, and then execute the command. Return errno if that fails."""
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
