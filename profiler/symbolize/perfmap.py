"""The perf map: a text file in which a process names the code that it makes, `/tmp/perf-PID.map`.

In: bytes of the file as they come. Out: (start, end, name), a line each, in the order of the file.
Source: tools/perf/Documentation/jit-interface.txt of Linux: `START SIZE symbolname`, the numbers hexadecimal.
"""

from __future__ import annotations

import re

from pyprof.diagnostics import Diagnostics

_LINES = re.compile(rb"[^\n]++")
_LINE = re.compile(rb"(?:0x)?+([0-9a-fA-F]{1,16}+)[ \t]++(?:0x)?+([0-9a-fA-F]{1,16}+)[ \t]++")

MAX_NAME = 4096
MAX_LINE = 2 * MAX_NAME
"""Bytes of a line that are looked at."""
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
        self._rest = rest[:MAX_LINE]
        if not newline:
            return []
        found, broken = [], 0
        for at in _LINES.finditer(text):
            if self._lines >= MAX_LINES:
                self._diagnostics.count("perf map: too many lines, the rest is not read")
                break
            known = _read_line(text[at.start() : min(at.end(), at.start() + MAX_LINE)])
            if known is None:
                broken += 1
            else:
                found.append(known)
                self._lines += 1
        if broken:
            self._diagnostics.count("perf map: line not understood", broken)
        return found


def _read_line(line: bytes) -> tuple[int, int, str] | None:
    """None if it says nothing."""
    match = _LINE.match(line)
    name = line[match.end() :].rstrip(b" \t\r")[:MAX_NAME] if match else b""
    if match is None or not name:
        return None
    low, length = int(match[1], 16), int(match[2], 16)
    return (low, low + length, name.decode("utf-8", "backslashreplace")) if length and low + length < 1 << 64 else None
