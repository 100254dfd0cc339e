"""A pyprof process on a pseudoterminal, to which a test sends keys and from which it reads output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from typing import Any

from tests.cli.support import PYPROF

LEFT = b"\x1b[?1049l"
"""The control sequence that leaves the alternate screen."""
_DRAWN = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class Driven:
    """A process on a pseudoterminal.

    Attributes:
        said: All output since the last call of until().
    """

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self.said = b""
        self._ours = ours

    def until(self, text: str | bytes, timeout_s: float = 30) -> bytes:
        """Read output until this text or these bytes appear, and return it."""
        end = time.monotonic() + timeout_s
        self.said = b""
        while (text if isinstance(text, bytes) else text.encode()) not in self._plain(isinstance(text, str)):
            assert time.monotonic() < end, (text, self.said)
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._ours, 1 << 16)
                except OSError:  # no process has the other end open
                    raise AssertionError((text, self.said)) from None
        return self.said

    def _plain(self, drawn: bool) -> bytes:
        return _DRAWN.sub(b"", self.said) if drawn else self.said

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._ours)

    def stopped(self) -> None:
        """Wait until job control has stopped the process."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def ended(self) -> int:
        return self.process.wait(30)


@contextlib.contextmanager
def driven(*arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Driven]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [*PYPROF, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        process_group=0,  # Ctrl-Z does not stop an orphaned process group
        env={**os.environ, "TERM": "xterm-256color"},
    )
    try:
        yield Driven(process, ours)
    finally:
        for fd in (ours, theirs):
            os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
