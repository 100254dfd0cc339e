"""Goroutines that no thread runs, read from made memory: both layouts of struct g, states, and hostile contents."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from pyprof.errors import FormatError
from pyprof.interpreters.detection_symbols import Symbol
from pyprof.interpreters.goroutines import WaitingGoroutine, is_unchanged, read_goroutines
from pyprof.model.profile import ThreadInfo
from pyprof.model.thread_stacks import ThreadStack
from pyprof.model.unwind_result import StackEnd
from pyprof.problem_counters import Diagnostics

SYMBOLS = [Symbol(b"runtime.allgs", 8, 24), Symbol(b"runtime.waitReasonStrings", 32, 64)]
LIST, TEXT, FIRST, SIZE = 0x80, 0x100, 0x200, 0x100
LAYOUTS = {"Go 1.17 to 1.22, 1.25 and later": 144, "Go 1.23 and 1.24": 152}
MINUTE_NS = 60_000_000_000
NOW_NS = 100 * MINUTE_NS

Fields = tuple[int, int, int, int]
"""Status, number, waitsince and waitreason of a goroutine."""

GOROUTINES: list[Fields] = [
    (4, 1, 0, 3),
    (2, 7, 0, 0),
    (0x1004, 12, NOW_NS - 3 * MINUTE_NS - 1, 1),
    (1, 1 << 40, 0, 1),
    (6, 0, 0, 0),
    (4, 13, NOW_NS + MINUTE_NS, 2),
    (9, 14, 0, 0),
]


def made_goroutines(status: int, goroutines: Sequence[Fields] = GOROUTINES) -> bytes:
    """Return the memory of a process with goroutines whose atomicstatus is at this offset."""
    data = bytearray(FIRST + SIZE * len(goroutines))
    struct.pack_into("<3Q", data, 8, LIST, len(goroutines), len(goroutines))
    text = b"chan receivesle\x1bep"
    data[TEXT : TEXT + len(text)] = text
    struct.pack_into("<8Q", data, 32, 0, 0, TEXT, 12, TEXT + 12, 6, 1 << 63, 5)
    for at, (state, number, since, reason) in enumerate(goroutines):
        g = FIRST + SIZE * at
        if LIST + 8 * at < TEXT:
            struct.pack_into("<Q", data, LIST + 8 * at, g)
        struct.pack_into("<2Q", data, g, 0x10000 * (at + 1), 0x10000 * (at + 1) + 0x1000)
        struct.pack_into("<2Q", data, g + 56, 0x10000 * (at + 1) + 0x800, 0x401000 + at)
        struct.pack_into("<IIQQQB", data, g + status, state, 0, number, 0, since, reason)
    return bytes(data)


def found_in(data: bytes, now_ns: int = NOW_NS) -> list[WaitingGoroutine]:
    return [goroutine for goroutine, _ in read_goroutines(lambda at, size: data[at : at + size], SYMBOLS, now_ns)]


@pytest.mark.parametrize("status", LAYOUTS.values(), ids=LAYOUTS)
def test_goroutines_that_no_thread_runs_have_number_state_and_registers(status: int) -> None:
    found = found_in(made_goroutines(status))
    assert [(each.number, each.state) for each in found] == [
        (1, "waiting"),
        (12, "chan receive, 3 minutes"),
        (1 << 40, "runnable"),
        (13, "sleep"),
        (14, "preempted"),
    ]
    assert found[1] == WaitingGoroutine(12, "chan receive, 3 minutes", 0x401002, 0x30800, 0x31000)


def test_goroutines_of_a_core_file_have_no_minutes() -> None:
    assert found_in(made_goroutines(144), 0)[1].state == "chan receive"


@pytest.mark.parametrize(
    "goroutines",
    [
        pytest.param([], id="none"),
        pytest.param([(4, 5, 0, 0), (4, 5, 0, 0)], id="one number twice"),
        pytest.param([(4, 0, 0, 0)], id="no number"),
        pytest.param([(77, 5, 0, 0)], id="unknown state"),
        pytest.param([(6, 5, 0, 0)], id="all dead"),
    ],
)
def test_goroutines_that_are_not_plausible_are_refused(goroutines: list[Fields]) -> None:
    with pytest.raises(FormatError):
        found_in(made_goroutines(144, goroutines))


def test_goroutines_after_the_first_ten_thousand_are_counted() -> None:
    diagnostics = Diagnostics()
    goroutines = [(4, number, 0, 0) for number in range(1, 10_003)]
    data = bytearray(made_goroutines(144, goroutines))
    data += struct.pack("<10002Q", *range(FIRST, len(data), SIZE))
    struct.pack_into("<Q", data, 8, len(data) - 8 * 10_002)
    found = read_goroutines(lambda at, size: bytes(data[at : at + size]), SYMBOLS, 0, diagnostics)
    assert len(found) == 10_000
    assert diagnostics.counts == {"goroutines_left_out": 2}


def test_list_with_a_wild_address_or_length_is_refused() -> None:
    data = bytearray(made_goroutines(144))
    for pointer, count in ((LIST, 1 << 60), (1 << 63, 3), (len(data) - 8, 3)):
        struct.pack_into("<2Q", data, 8, pointer, count)
        with pytest.raises(FormatError):
            found_in(bytes(data))


def test_goroutine_with_a_stack_pointer_outside_of_its_stack_is_left_out() -> None:
    data = bytearray(made_goroutines(144))
    struct.pack_into("<Q", data, FIRST + 56, 0x500)
    assert [each.number for each in found_in(bytes(data))] == [12, 1 << 40, 13, 14]


def test_goroutine_that_has_run_meanwhile_is_noticed() -> None:
    data = bytearray(made_goroutines(144))
    found = read_goroutines(lambda at, size: bytes(data[at : at + size]), SYMBOLS)
    (goroutine, g), *_ = found
    assert is_unchanged(lambda at, size: bytes(data[at : at + size]), g, goroutine)
    struct.pack_into("<Q", data, g + 64, 0x402000)
    assert not is_unchanged(lambda at, size: bytes(data[at : at + size]), g, goroutine)


def test_goroutine_has_its_number_although_samples_have_other_labels() -> None:
    info = ThreadInfo(1, -1, "goroutine 12", "program", labels=(("place", "0"),))
    assert ThreadStack(info, "sleep", StackEnd.ROOT, ()).goroutine == 12
