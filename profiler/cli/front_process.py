"""A front process, which stays in the terminal's session while pyprof works in a separate one.

The kernel shares processors among sessions first (session/process_priority.py), and a process that a shell starts
cannot leave the session without losing the terminal's signals. So on a busy machine pyprof continues in a child that
leads a new session. Its parent passes signals on, waits, and ends as the child ends.

The start of a command loads this module, so it does without `signal`, which imports enum.
"""

from __future__ import annotations

import _signal
import os

from pyprof.session import process_priority

FORWARDED = (
    _signal.SIGHUP,
    _signal.SIGINT,
    _signal.SIGQUIT,
    _signal.SIGTERM,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGCONT,
)
"""Signals that the front process sends to its child."""


def begin_session_if_slowed() -> None:
    """Continue in a child that leads a new session, if that gives the process more processor time."""
    if process_priority.is_slowed_by_other_sessions():
        begin_session()


def begin_session() -> None:
    """Return in a child that leads a new session with a raised priority. The caller becomes its front process.

    A signal that the caller ignores stays ignored in the child. If the front process is killed, the child gets SIGTERM.
    """
    usual = _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # with SIG_IGN the kernel would report no end of a child
    watched = {*FORWARDED, _signal.SIGCHLD, _signal.SIGTSTP}
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, watched)
    front = os.getpid()
    try:
        child = os.fork()
    except OSError:  # too many processes: continue in this session
        child = 0
    if child:
        _end_like(_wait(child, watched))
    _signal.signal(_signal.SIGCHLD, usual)
    if os.getpid() != front:
        from pyprof.collectors.linux import libc, procfs

        procfs.front_pid = front
        libc.prctl(libc.PR_SET_PDEATHSIG, _signal.SIGTERM)
        if os.getppid() != front:
            os.kill(os.getpid(), _signal.SIGTERM)
        process_priority.begin_session()
        process_priority.raise_priority(os.getpid())
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _wait(child: int, watched: set[int]) -> int:
    """Pass signals on to a child until it ends. Return its status as waitpid(2) gives it."""
    while True:
        number = _signal.sigwait(watched)
        if number == _signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
        elif number == _signal.SIGTSTP:  # the kernel ignores it in the child, whose session has no terminal
            os.kill(child, _signal.SIGSTOP)
            os.kill(os.getpid(), _signal.SIGSTOP)
        else:
            os.kill(child, number)


def _end_like(status: int) -> None:
    """End this process with the exit code or by the signal of a status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != _signal.SIGKILL:
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
