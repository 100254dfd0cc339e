"""Tests of the goroutines of threads in a core file, which lead to the rest of their stacks."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pyprof.collectors.postmortem.saved_thread_collector import SavedThread, SavedThreads
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets
from pyprof.model.sample_batch import GOROUTINE_WORD
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.core_file import make_saved_memory
from pyprof.problem_counters import Diagnostics

START, CURRENT, MACHINE, GOROUTINE, SP = 0x10000, 0x10100, 0x10200, 0x10400, 0x10800
OFFSETS = GoroutineOffsets(tls=-8, m=48, g0=0, gsignal=80, curg=192, sched=56)


def goroutine_piece(words: dict[int, int]) -> bytes | None:
    """Return the data of the piece that names the goroutine of a thread whose thread pointer is at START + 8."""
    data = bytearray(0x1000)
    for avma, value in words.items():
        struct.pack_into("<Q", data, avma - START, value)
    memory = make_saved_memory(BytesSource(bytes(data)), [(START, len(data), 0)])
    row = np.zeros(len(X86_64.registers), np.uint64)
    row[X86_64.sp] = SP
    saved = SavedThreads(
        [SavedThread(1, row, 64, START + 8)],
        X86_64,
        memory,
        AddressSpace(0, 1, 0, (), memory.read, ""),
        Diagnostics(),
    )
    saved.find_goroutines(OFFSETS)
    (batch,) = saved.sample_again()
    pieces = batch.stack.pieces.get(0, ())
    return next((bytes(piece.data) for piece in pieces if piece.avma == GOROUTINE_WORD), None)


def test_sample_of_a_saved_thread_names_the_goroutine_that_it_runs() -> None:
    found = goroutine_piece({START: CURRENT, CURRENT + 48: MACHINE, MACHINE + 192: GOROUTINE})
    assert found == struct.pack("<Q", GOROUTINE)


@pytest.mark.parametrize("current", [0, 7, (1 << 64) - 8, (1 << 63) + 8, START + 0x1000])
def test_thread_whose_words_lead_nowhere_has_no_goroutine(current: int) -> None:
    assert goroutine_piece({START: current}) is None
