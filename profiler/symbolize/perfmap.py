"""The perf map: a text file in which a process names the code that it makes, `/tmp/perf-PID.map`.

In: bytes of the file as they come. Out: (start, end, name), a line each, in the order of the file.
Source: tools/perf/Documentation/jit-interface.txt of Linux: `START SIZE symbolname`, the numbers hexadecimal.
"""

from __future__ import annotations

import re

from pyprof.diagnostics import Diagnostics

_LINE = re.compile(
    rb"^(?:0x)?([0-9a-fA-F]{1,16})[ \t]+(?:0x)?([0-9a-fA-F]{1,16})[ \t]+([^\n]*?)[ \t\r]*$", re.MULTILINE
)

MAX_NAME = 4096
MAX_LINES = 1 << 21


class PerfMapReader:
    """Takes the file in pieces; a line that is not complete yet waits for the next."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._rest = b""
        self._lines = 0

    def restart(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> list[tuple[int, int, str]]:
        """The complete lines of data that say something; the others are counted."""
        text, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[-2 * MAX_NAME :]
        if not newline:
            return []
        found = []
        for start, size, name in _LINE.findall(text):
            low, length = int(start, 16), int(size, 16)
            if length and name and low + length < 1 << 64:
                found.append((low, low + length, name[:MAX_NAME].decode("utf-8", "backslashreplace")))
        broken = len(text.splitlines()) - len(found) - text.count(b"\n\n")
        if broken > 0:
            self._diagnostics.count("perf map: line not understood", broken)
        if self._lines + len(found) > MAX_LINES:
            self._diagnostics.count("perf map: too many lines, the rest is not read")
            found = found[: max(MAX_LINES - self._lines, 0)]
        self._lines += len(found)
        return found
