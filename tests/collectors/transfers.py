"""The report of c_transfers about its calls, and the counters of a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

CUT_SHORT = "system_call_cut_short:"
CALLS = {"send": "sendto", "recv": "recvfrom", "zero": "read", "eof": "sendfile", "nonblock": "write"}
"""Name of the system call for the kinds of calls that have another name."""


def shorts(printed: str) -> Counter[str]:
    """Return the number of unexpectedly short calls by system call, from the program's output."""
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
            found[CALLS.get(name, name)] += count  # i386 has two system calls where x86-64 has one
    return found
