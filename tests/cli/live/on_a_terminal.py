"""pyprof on a terminal of its own: keys go in, what is drawn comes out."""

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
"""The terminal shows what it showed before."""
_DRAWN = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class Driven:
    """said: everything since the last call of until(), as it came."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self.said = b""
        self._ours = ours

    def until(self, text: str | bytes, timeout_s: float = 30) -> bytes:
        """What came until a text was drawn, or bytes were sent."""
        end = time.monotonic() + timeout_s
        self.said = b""
        while (text if isinstance(text, bytes) else text.encode()) not in self._plain(isinstance(text, str)):
            assert time.monotonic() < end, (text, self.said)
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._ours, 1 << 16)
                except OSError:  # nobody has the other end
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
        """Until it has been stopped, as a job."""
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
        process_group=0,  # not orphaned: Ctrl-Z stops it
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
