"""Reader of MOJO, the binary format of austin 4, which only counts the samples.

Reference: https://p403n1x87.github.io/austin/4.1/formats/mojo/.
"""

from __future__ import annotations

_STACK = 2
_FIELDS = {
    1: "ss",
    _STACK: "vvs",
    3: "vvvvvvv",
    4: "",
    5: "v",
    6: "s",
    7: "",
    8: "",
    9: "v",
    10: "v",
    11: "vs",
    12: "v",
}
"""Fields that follow each kind of event in MOJO. `s` is a NUL-terminated string. `v` is a number whose bytes have bit 7
set, except for the last byte.
"""


def samples(data: bytes) -> int:
    """Return the number of samples in data in the MOJO format.

    Raises:
        ValueError: The data is not MOJO, or ends in the middle of an event.
    """
    if data[:3] != b"MOJ":
        raise ValueError("not MOJO")
    at, count = _number(data, 3), 0
    while at < len(data):
        event = data[at]
        at += 1
        if event not in _FIELDS:
            raise ValueError(f"unknown event {event}")
        for field in _FIELDS[event]:
            at = data.index(b"\0", at) + 1 if field == "s" else _number(data, at)
        count += event == _STACK
    return count


def _number(data: bytes, at: int) -> int:
    """Return the position after the MOJO number that begins at `at`."""
    while at < len(data) and data[at] & 0x80:
        at += 1
    if at >= len(data):
        raise ValueError("ends in a number")
    return at + 1
