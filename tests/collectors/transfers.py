"""What c_transfers says of its calls, against what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

CUT_SHORT = "system call of the target cut short by a stop: "
CALLS = {"send": "sendto", "recv": "recvfrom", "zero": "read", "eof": "sendfile", "nonblock": "write"}
"""Kind of call -> the name of its system call, where that is another one."""


def shorts(printed: str) -> Counter[str]:
    """Short calls by name of the system call, of those that the program does not expect to be short."""
    found: Counter[str] = Counter()
    for line in printed.splitlines():
        kind, calls, short = line.split()
        assert int(calls) > 0, line
        found[CALLS.get(kind, kind)] += int(short)
    return +found


def counted(counts: Mapping[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for key, count in counts.items():
        if key.startswith(CUT_SHORT):
            name = key.removeprefix(CUT_SHORT)
            found[CALLS.get(name, name)] += count  # i386 has both, x86-64 has one
    return found
