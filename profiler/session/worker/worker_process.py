"""The worker process: its start and its end.

The command line owns its process, so it forks: modules are loaded once. Inside another program, pyprof starts a fresh
interpreter. Such a program has threads, whose locks a fork would leave locked for ever, and its files and memory do not
belong to pyprof. docs/decisions/two-processes.md has the cost of both ways.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, Protocol

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_sandbox import raise_file_limit
from pyprof.errors import PyprofError
from pyprof.session import process_priority
from pyprof.session.worker.deadline import AT_ONCE, SIGNAL, WANTED, WorkDeadline, end_with
from pyprof.session.worker.message_channel import Channel, Closed

if TYPE_CHECKING:
    from pyprof.session.worker.file_broker import Notice

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals for the sampler that the worker ignores. The kernel sends some of them to all processes of a terminal's
process group.
"""
_FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command of pyprof, also during its start."""
_PATIENCE_S = 2.0
_POLL_S = 0.005
_WRITING_S = 30.0
"""Maximum time in which the file broker writes what a killed worker had recorded, in seconds."""
_NOTIFYING_S = 0.5
"""Maximum wait for the file broker to accept a notice, in seconds.

The file broker may be busy writing a profile or opening a slow file.
"""


_GARBAGE = 20_000
"""Threshold of Python's cyclic garbage collector during a recording, in new objects; the default is 700."""


class WorkerDied(PyprofError):
    """The worker process has ended before it was requested to."""

    reason = "worker_died"


_workers: set[Worker] = set()
"""Worker processes that this process has started and not closed yet."""


def exit_at_once(code: int) -> NoReturn:
    """Kill all worker processes and exit this process.

    May be called from any thread. A worker that is stopped (SIGSTOP) would otherwise remain.
    """
    for worker in tuple(_workers):
        worker.kill()
    os._exit(code)


class Child(Protocol):
    pid: int

    def poll(self) -> int | None:
        """Return the exit code of the child process, negative for a signal, or None while it runs."""
        ...


class Worker:
    """A running worker process and the channels to it. close() ends it and frees everything.

    Attributes:
        channel: Messages and responses.
        questions: Requests for interpreter symbols (interpreter_symbols.py).
        pid: Pid of the worker.
        yields: True if name resolution runs under SCHED_IDLE while the sampler does not wait (process_priority.py).
    """

    def __init__(self, child: Child, channel: Channel, questions: Channel, notices: Channel) -> None:
        """Create the handle of a worker that was started.

        Args:
            child: The worker process.
            channel: Messages and responses.
            questions: Requests for interpreter symbols.
            notices: Messages to the file broker, which sends no responses to them.
        """
        self._child = child
        self.channel = channel
        self.questions = questions
        self._notices = notices
        self._unsent: deque[bytes] = deque()
        self._notifying = threading.Lock()
        self.pid = child.pid
        self.yields = False
        self._preferred = False
        _workers.add(self)

    def notify(self, notice: Notice) -> None:
        """Send a notice to the file broker before the worker receives the message that depends on it.

        If the file broker is busy, the first notice that it does not accept blocks for at most _NOTIFYING_S. Later ones
        do not block, and are sent when the file broker accepts notices again.
        """
        with self._notifying:
            self._unsent.append(pickle.dumps(notice))
            until = time.monotonic() + (_NOTIFYING_S if len(self._unsent) == 1 else 0)
            try:
                while self._unsent:
                    if self._notices.try_send([self._unsent[0]]):
                        self._unsent.popleft()
                    elif (left := until - time.monotonic()) > 0:
                        self._notices.wait(True, left)
                    else:
                        break
            except Closed:
                self._unsent.clear()

    def wait_until_ready(self) -> None:
        """Wait until the worker reports that it has given up its rights, or has ended.

        The report stays in the channel.
        """
        self.channel.wait(sending=False)

    def died(self) -> WorkerDied:
        """Return the error that explains why the worker's channel is closed."""
        code = self._ended(_PATIENCE_S)
        how = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
        hint = "dmesg may say why: memory?" if code == -signal.SIGKILL else ""
        written = "; what it had recorded by then is written, record again for the rest" if self._is_written() else ""
        return WorkerDied(f"the process that unwinds and names has ended{how}{written}", hint)

    def _is_written(self) -> bool:
        """Wait for the file broker, and return True if it has given the current window to its sink."""
        try:
            return self._notices.receive(_WRITING_S) is not None
        except Closed:
            return False

    def _ended(self, patience_s: float) -> int | None:
        deadline = time.monotonic() + patience_s
        while (code := self._child.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """Kill the worker process. A caller that waits for a response then gets WorkerDied."""
        if self._child.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._continue()

    def _continue(self) -> None:
        """Send SIGCONT to the process group of the worker and its file broker, in case another process has stopped
        them.
        """
        for send in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGCONT)

    def wake(self) -> None:
        """Give the worker its usual priority again if it runs under SCHED_IDLE.

        A caller that waits for the worker must call this repeatedly until the worker has responded.
        """
        if self.yields and self._child.poll() is None:
            from pyprof.session.process_priority import leave_idle_policy  # only an agent's worker uses SCHED_IDLE

            leave_idle_policy(self.pid)

    def waited_s(self) -> float:
        """Return how long the worker has waited for a processor, in seconds."""
        return procfs.read_waited_s(self.pid, self.pid)

    def prefer(self) -> None:
        """Raise the priority of the worker, because the user waits for the worker to end."""
        if not self._preferred and self._child.poll() is None:
            self._preferred = True
            process_priority.raise_priority(self.pid)

    def lower_priority(self) -> None:
        """Lower the priority of the worker, because samples are taken and the user does not wait for it."""
        if not self._preferred and self._child.poll() is None:
            process_priority.lower_priority(self.pid)

    def signal_deadline(self, is_immediate: bool = False) -> None:
        """Signal the deadline to the worker, which then responds with what it has.

        Args:
            is_immediate: True if stacks that are not unwound yet get their innermost frames only.
        """
        self._signal(AT_ONCE if is_immediate else SIGNAL)

    def wait_for(self) -> None:
        """Interrupt the worker's background work, because the sampler now waits for a response."""
        self._signal(WANTED)

    def _signal(self, number: int) -> None:
        if self._child.poll() is None:
            self.wake()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            self._continue()

    def leave(self, patience_s: float) -> bool:
        """Shut down the worker's channel as if this process had been killed, so that the worker writes what it has.

        Args:
            patience_s: Maximum wait in seconds.

        Returns:
            True if the worker has ended.
        """
        self.channel.hang_up()
        return self._ended(patience_s) is not None

    def close(self, patience_s: float = _PATIENCE_S, killed_s: float = _PATIENCE_S) -> None:
        """End the worker, after Shutdown or at once. May be called twice.

        Args:
            patience_s: Maximum wait before the worker is killed, in seconds.
            killed_s: Maximum wait after that, in seconds.
        """
        self.channel.close()
        self.questions.close()
        self._notices.close()
        if self._ended(patience_s) is None:
            with contextlib.suppress(ProcessLookupError):
                self.kill()
            self._ended(killed_s)
        _workers.discard(self)


class _Forked:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self._code is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # another thread of this process waits for all children
                    pid, status = self.pid, 0
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code


Start = Callable[[bool], Worker]
"""A function that starts a worker. Its argument is True if the worker must give up its rights."""


def forked(confined: bool = True, sink_fds: Sequence[int] = ()) -> Worker:
    """Fork a worker. Only for a process that belongs to pyprof alone.

    Args:
        confined: True if the worker gives up its rights.
        sink_fds: File descriptors for the file broker.
    """
    pairs = [Channel.pair() for _ in range(3)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads handle a fork themselves
            pid = os.fork()
        if not pid:
            _run(lambda: _child([theirs for _, theirs in pairs], confined, sink_fds))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for _, theirs in pairs:
        theirs.close()
    return Worker(_Forked(pid), *(ours for ours, _ in pairs))


@contextlib.contextmanager
def forked_early(confined: bool = True, sink_fds: Sequence[int] = ()) -> Iterator[Callable[[bool], Worker]]:
    """Fork a worker as soon as the modules that both processes need are loaded.

    The worker loads its other modules while this process loads its own. That takes less time, and each process needs
    less memory.

    From the fork on, SIGINT, SIGTERM and SIGHUP are blocked in this process. Their default action would leave a worker
    that is stopped. The caller handles them at once, by interrupts.listen(), which includes those that are pending.

    Args:
        confined: True if the worker gives up its rights.
        sink_fds: File descriptors for the file broker.

    Yields:
        A function that returns this worker at the first call and forks another one at later calls.
    """
    for needed in ("pyprof.session.pipeline.interpreter_readers", "pyprof.session.worker.message_codec"):
        import_module(needed)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FATAL)
    early = [forked(confined, sink_fds)]
    try:
        yield lambda wanted: early.pop() if early and wanted == confined else forked(wanted, sink_fds)
    finally:
        for worker in early:
            worker.close(patience_s=0)


def freeze_loaded_objects() -> None:
    """Exclude all existing objects from garbage collection, because loaded modules stay, and let the collector run at
    the interval for recordings.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE)


def _run(job: Callable[[], None]) -> None:
    """Run a job in a forked child and exit. No inherited file is flushed or closed, because data would be written
    twice.
    """
    code = 1
    try:
        job()
        code = 0
    except BaseException:  # noqa: BLE001 - shown before the process exits
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _child(ends: Sequence[Channel], confined: bool, kept: Sequence[int]) -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_priority.begin_session()
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        process_priority.raise_priority(os.getpid())
    close_all_but(*(end.fileno() for end in ends), *kept)
    _serve(*ends, confined=confined, kept=kept)


def close_all_but(*kept: int) -> None:
    """Close all file descriptors except these and the standard streams."""
    bounds = [2, *sorted({fd for fd in kept if fd > 2}), os.sysconf("SC_OPEN_MAX")]
    for below, above in pairwise(bounds):
        os.closerange(below + 1, above)


_FRESH = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); from {here} import main; main(*json.loads(sys.argv[1]))"
)


def spawned(confined: bool = True) -> Worker:
    """Start a worker in a fresh interpreter. For a process that does not belong to pyprof alone.

    Args:
        confined: True if the worker gives up its rights.

    Raises:
        OSError: The interpreter cannot be started.
    """
    import subprocess

    pairs = [Channel.pair() for _ in range(3)]
    ends = [theirs.fileno() for _, theirs in pairs]
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _FRESH.format(here=__name__), json.dumps([confined, *ends]), json.dumps(sys.path)],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        for ours, _ in pairs:
            ours.close()
        raise
    finally:
        for _, theirs in pairs:
            theirs.close()
    return Worker(child, *(ours for ours, _ in pairs))


def main(confined: bool, *ends: int) -> None:
    """Run a worker in a fresh interpreter; this is the main function of the process.

    Args:
        confined: True if the worker gives up its rights.
        ends: File descriptors of the channels, in the order of the parameters of _serve().
    """
    import socket

    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    _serve(*(Channel(socket.socket(fileno=fd)) for fd in ends), confined=confined)


def _serve(channel: Channel, questions: Channel, notices: Channel, *, confined: bool, kept: Sequence[int] = ()) -> None:
    """Run the worker in its process. Load all modules and start the file broker before rights are given up."""
    from pyprof.objfile import io_deadline
    from pyprof.session.worker import sandbox
    from pyprof.session.worker.interpreter_symbols import answer_questions
    from pyprof.session.worker.worker_loop import Service

    raise_file_limit(1 << 16)  # it may hold a descriptor for each process
    deadline = WorkDeadline()
    deadline.obey()
    io_deadline.set_expiry_check(lambda: deadline.late)
    if confined:
        sandbox.load()
    freeze_loaded_objects()
    box = sandbox.Sandbox(notices, kept)
    missing = box.confine() if confined else (sandbox.UNCONFINED,)
    service = Service(channel, box.keeper, deadline, missing)
    answer_questions(questions, partial(end_with, os.getppid(), service.has_left))
    try:
        service.run()
    finally:
        box.close()
