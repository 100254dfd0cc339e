"""The worker process: how it is started, how it is ended.

By fork where this program owns its process (the command line): what is loaded is loaded once. As a fresh interpreter
where it is a library in somebody's process: that has threads, whose locks a fork would leave locked for ever, and files
and memory that are none of ours. docs/design.md has what each costs.
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
from pyprof.collectors.linux.rights import raise_file_limit
from pyprof.errors import PyprofError
from pyprof.session.worker import share
from pyprof.session.worker.channel import Channel, Closed
from pyprof.session.worker.hurry import AT_ONCE, SIGNAL, WANTED, Hurry, end_with

if TYPE_CHECKING:
    from pyprof.session.worker.keeper import Notice

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that are the sampler's: all processes of a group may get them."""
_PATIENCE_S = 2.0
_POLL_S = 0.005
_WRITING_S = 30.0
"""Maximum time in which the keeper writes what a worker that was killed had recorded."""
_NOTIFYING_S = 0.5
"""How long the keeper may take to listen: it writes a profile, or opens a file that is slow."""


class WorkerDied(PyprofError):
    """The process that unwinds and names has ended before it was asked to."""

    reason = "worker_died"


_workers: set[Worker] = set()
"""The workers of this process that are not closed."""


def exit_at_once(code: int) -> NoReturn:
    """End this process from any thread, and kill its workers. One that is stopped (SIGSTOP) would stay for ever."""
    for worker in tuple(_workers):
        worker.kill()
    os._exit(code)


class Child(Protocol):
    pid: int

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        ...


class Worker:
    """A worker under way, and the channels to it. questions: for file_symbols.py. yields: names come after everything
    else while nobody waits for it (idle.py). close() ends it and leaves nothing behind.
    """

    def __init__(self, child: Child, channel: Channel, questions: Channel, notices: Channel) -> None:
        """notices: to its keeper, which only listens."""
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
        """The keeper, before the worker hears of it. One that has no time holds us up once: it hears of it later."""
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
        """Until it has given up its rights and says so, or has ended. What it said is still to be received."""
        self.channel.wait(sending=False)

    def died(self) -> WorkerDied:
        """Why the channel is closed."""
        code = self._ended(_PATIENCE_S)
        how = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
        hint = "dmesg may say why: memory?" if code == -signal.SIGKILL else ""
        written = "; what it had recorded by then is written, record again for the rest" if self._is_written() else ""
        return WorkerDied(f"the process that unwinds and names has ended{how}{written}", hint)

    def _is_written(self) -> bool:
        """Wait for the keeper, and return True if it has given the window under way to its sink."""
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
        """Kill the process: waiting for an answer then raises WorkerDied."""
        if self._child.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._continue()

    def _continue(self) -> None:
        """Continue the worker and its file broker, one process group, which another process may have stopped."""
        for send in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGCONT)

    def wake(self) -> None:
        """Somebody waits for it: call it again until it has answered."""
        if self.yields and self._child.poll() is None:
            from pyprof.session.worker.idle import come_back  # only an agent's worker yields

            come_back(self.pid)

    def waited_s(self) -> float:
        """For how long it has waited for a processor."""
        return procfs.waited_s(self.pid, self.pid)

    def prefer(self) -> None:
        """Raise the priority of the worker, because the user waits for it to end."""
        if not self._preferred and self._child.poll() is None:
            self._preferred = True
            share.take_more(self.pid)

    def take_less(self) -> None:
        """Lower the priority of the worker, because samples are taken and the user does not wait for it."""
        if not self._preferred and self._child.poll() is None:
            share.take_less(self.pid)

    def hurry(self) -> None:
        """No time is left: it answers with what it has."""
        self._signal(SIGNAL)

    def hasten(self) -> None:
        """The same, at once: of what it has not unwound it has the innermost frames only."""
        self._signal(AT_ONCE)

    def wait_for(self) -> None:
        """Somebody does: it does nothing else meanwhile."""
        self._signal(WANTED)

    def _signal(self, number: int) -> None:
        if self._child.poll() is None:
            self.wake()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            self._continue()

    def leave(self, patience_s: float) -> bool:
        """It is as if this process were killed: the worker writes what it has. Has it ended after so many seconds?"""
        self.channel.hang_up()
        return self._ended(patience_s) is not None

    def close(self, patience_s: float = _PATIENCE_S, killed_s: float = _PATIENCE_S) -> None:
        """After Bye, or at once. Safe to call twice. killed_s: how long one that had to be killed is waited for."""
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
                except ChildProcessError:  # somebody in this process waits for all children
                    pid, status = self.pid, 0
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code


Start = Callable[[bool], Worker]
"""Starts a worker that gives up its rights, or does not."""


def forked(confined: bool = True, kept: Sequence[int] = ()) -> Worker:
    """Where all of this process is ours. confined: the worker gives up its rights. kept: descriptors for its keeper."""
    pairs = [Channel.pair() for _ in range(3)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of numpy's, which take care of themselves
            pid = os.fork()
        if not pid:
            _run(lambda: _child([theirs for _, theirs in pairs], confined, kept))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for _, theirs in pairs:
        theirs.close()
    return Worker(_Forked(pid), *(ours for ours, _ in pairs))


@contextlib.contextmanager
def forked_early(confined: bool = True, kept: Sequence[int] = ()) -> Iterator[Callable[[bool], Worker]]:
    """A worker that is forked once the modules are loaded that both processes need. It loads its own beside this
    process, which goes on loading others: that takes less time, and each has less in memory. In the block it is given
    to whoever starts a worker; for a second one another is forked. kept: see forked().
    """
    for needed in ("pyprof.session.runtimes", "pyprof.session.worker.wire"):
        import_module(needed)
    early = [forked(confined, kept)]
    try:
        yield lambda wanted: early.pop() if early and wanted == confined else forked(wanted, kept)
    finally:
        for worker in early:
            worker.close(patience_s=0)


def _run(job: Callable[[], None]) -> None:
    """In the child: nothing of the parent's is ever finished, closed or written twice there: sinks flush."""
    code = 1
    try:
        job()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _child(ends: Sequence[Channel], confined: bool, kept: Sequence[int]) -> None:
    gc.freeze()
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    share.begin_session()
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        share.take_more(os.getpid())
    close_all_but(*(end.fileno() for end in ends), *kept)
    _serve(*ends, confined=confined, kept=kept)


def close_all_but(*kept: int) -> None:
    """The standard streams stay open, too."""
    bounds = [2, *sorted({fd for fd in kept if fd > 2}), os.sysconf("SC_OPEN_MAX")]
    for below, above in pairwise(bounds):
        os.closerange(below + 1, above)


_FRESH = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); from {here} import main; main(*json.loads(sys.argv[1]))"
)


def spawned(confined: bool = True) -> Worker:
    """Where this process is somebody else's. confined: see forked(). Raises OSError."""
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
    """Of a fresh interpreter. ends: descriptors, see _serve()."""
    import socket

    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    _serve(*(Channel(socket.socket(fileno=fd)) for fd in ends), confined=confined)


def _serve(channel: Channel, questions: Channel, notices: Channel, *, confined: bool, kept: Sequence[int] = ()) -> None:
    """What is needed later is loaded and the keeper is started before rights are given up."""
    from pyprof.objfile import patience
    from pyprof.session.worker import sandbox
    from pyprof.session.worker.file_symbols import answer_questions
    from pyprof.session.worker.service import Service

    raise_file_limit(1 << 16)  # a descriptor for each process
    hurry = Hurry()
    hurry.obey()
    patience.heed(lambda: hurry.late)
    if confined:
        sandbox.load()
    box = sandbox.Sandbox(notices, kept)
    missing = box.confine() if confined else (sandbox.UNCONFINED,)
    service = Service(channel, box.keeper, hurry, missing)
    answer_questions(questions, partial(end_with, os.getppid(), service.has_left))
    try:
        service.run()
    finally:
        box.close()
