"""Tests of JavaScript code that is read while its samples wait to be unwound, because the process may end before."""

from __future__ import annotations

import random
from typing import cast

import numpy as np
import pytest

from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan, Ranges
from pyprof.runtime_code.runtime_processes import RuntimeProcesses
from pyprof.runtime_code.v8.generated_code_reader import UNREAD, find_calls
from pyprof.runtime_code.v8.javascript_code_source import MIN_REST_NS, V8Code
from tests.jit.js_engine import BASE, BASELINE, CODE, MadeHeap
from tests.jit.memory import Memory
from tests.unwind.made_stacks import MadeLane, batch_of

OPTIMIZED_PC, BASELINE_PC, CALLER = CODE + 16 + 31, BASELINE + 16 + 21, 0x401000
LOW, FP, SIZE = 0x7000_0000, 0x7000_0100, 0x200
MADE = Mapping(BASE + 0x4000, BASE + 0x8000, "r-xp", 0, "00:00", 0, "")
FILE, AGAIN, BUILTINS = 0x1000_0000, 0x2000_0000, 0x100


class EndingProcess:
    """A process with a V8, whose memory is not readable any more after its end."""

    def __init__(self) -> None:
        self.made, self.has_ended = MadeHeap(), False
        size = self.made.add(BUILTINS.to_bytes(8, "little")) - 1
        self.made.symbols[b"v8_Default_embedded_blob_code_"] = FILE
        self.made.symbols[b"v8_Default_embedded_blob_code_size_"] = size
        self._memory = Memory()
        self._memory.put(BASE, bytes(self.made.data))
        self.space = self.make_space(1, FILE)
        self.v8 = V8Code(X86_64, Diagnostics())
        assert self.scan(1)

    def make_space(self, generation: int, *files: int, made: Mapping = MADE) -> AddressSpace:
        """Return the address space of a generation, in which V8's file is mapped at the given addresses."""
        parts = tuple(Mapping(at, at + 0x1000, "r-xp", 0, "08:01", 7, "/usr/bin/node") for at in files)
        return AddressSpace(generation, 1, generation, (made, *parts), self._read, "/")

    def _read(self, avma: int, size: int) -> bytes:
        return b"" if self.has_ended else self._memory.read(avma, size)

    def scan(self, now_ns: int) -> bool:
        return self.v8.update(CodeScan(self.space, X86_64, 0, now_ns, tuple(self.made.symbols.items())))

    def batch(self, pc: int, function: int = 0) -> SampleBatch:
        """Return one sample of native code that generated code has called, which returns to `pc`."""
        function = function or self.made.function
        words = {LOW + 8: FP, LOW + 16: pc, FP: 0, FP + 8: CALLER, FP - 8: 0x111, FP - 16: function}
        batch = batch_of(X86_64, [MadeLane({}, words, [], LOW, SIZE)])
        batch.time_ns[:] = 3 * MIN_REST_NS
        return batch

    def name(self, batch: SampleBatch, pc: int) -> str:
        none, flags = np.zeros(1, np.uint64), np.zeros(1, np.bool_)
        sp = np.array([FP - 0x80, FP + 16], np.uint64)
        trust, end = np.full(2, Trust.CONTEXT, np.uint8), np.full(1, StackEnd.ROOT, np.uint8)
        pcs, exact = np.array([pc, CALLER], np.uint64), np.zeros(2, np.bool_)
        walk = Walk(np.array([0, 2]), pcs, exact, trust, sp, end, none, none, flags)
        code = self.v8.spans.find(pc - 1, int(batch.time_ns[0]))
        bound = self.v8.bind_frames(batch, walk, np.zeros(1, np.int64), np.zeros(1, np.int64))[0]
        found = bound or code
        return self.v8.name(found).name if found is not None else ""


@pytest.mark.parametrize(("pc", "name"), [(OPTIMIZED_PC, "outer"), (BASELINE_PC, "inner")])
def test_code_that_was_read_ahead_has_its_name_after_the_process_ended(pc: int, name: str) -> None:
    process = EndingProcess()
    batch = process.batch(pc)
    process.v8.read_ahead(process.space, batch)
    process.scan(2 * MIN_REST_NS)  # a check while the sample waits
    process.has_ended = True
    assert process.name(batch, pc) == name
    span = process.v8.spans.current(pc - 1)
    assert span is not None
    assert span.value.filled


def test_function_that_the_collector_has_overwritten_is_found_in_its_script() -> None:
    process = EndingProcess()
    process.v8.read_ahead(process.space, process.batch(OPTIMIZED_PC))  # a function of the same script
    batch = process.batch(BASELINE_PC, process.made.bytecode)
    process.v8.read_ahead(process.space, batch)
    process.has_ended = True
    assert process.name(batch, BASELINE_PC) == "inner"


def test_functions_that_v8_maps_again_are_known_to_waiting_batches() -> None:
    process = EndingProcess()
    known: list[Ranges] = [process.v8.code_ranges]
    first, later = process.space, process.make_space(2, FILE, AGAIN)
    for space in (later, first, later):
        process.v8.read_ahead(space, process.batch(OPTIMIZED_PC))
        known.append(process.v8.code_ranges)
    assert known == [((FILE, FILE + BUILTINS),), *[((FILE, FILE + BUILTINS), (AGAIN, AGAIN + BUILTINS))] * 3]


def test_code_in_reserved_memory_is_read_before_its_mapping_is_known() -> None:
    process = EndingProcess()
    made = Mapping(BASE, BASE + 0x1000, "r-xp", 0, "00:00", 0, "")
    assert not made.start <= OPTIMIZED_PC < made.end
    unknown, batch = process.make_space(2, FILE, made=made), process.batch(OPTIMIZED_PC)
    process.v8.read_ahead(unknown, batch)
    assert process.v8.reserved == (0, 0)
    assert process.v8.spans.find(OPTIMIZED_PC - 1, int(batch.time_ns[0])) is None
    process = EndingProcess()
    process.v8.read_ahead(process.make_space(2, FILE, AGAIN, made=made), batch)
    assert process.v8.reserved == (made.start, AGAIN)
    assert process.name(batch, OPTIMIZED_PC) == "outer"


def test_wait_without_an_address_space_has_no_code_to_read_ahead() -> None:
    batch = EndingProcess().batch(OPTIMIZED_PC)
    batch.space[:] = max(batch.spaces) + 1
    RuntimeProcesses(cast(ImageStore, None), UnwindOptions(), Diagnostics()).read_ahead(batch)


@pytest.mark.parametrize(("pc", "name"), [(OPTIMIZED_PC, ""), (BASELINE_PC, "")])
def test_code_that_was_not_read_ahead_has_no_name_after_the_process_ended(pc: int, name: str) -> None:
    process = EndingProcess()
    process.has_ended = True
    assert process.name(process.batch(pc), pc) == name


def test_functions_read_ahead_are_read_again_after_their_samples_were_unwound() -> None:
    process = EndingProcess()
    batch = process.batch(BASELINE_PC)
    process.v8.read_ahead(process.space, batch)
    assert process.name(batch, BASELINE_PC) == "inner"
    process.scan(4 * MIN_REST_NS)
    process.has_ended = True
    assert process.name(batch, BASELINE_PC) in ("", UNREAD)


def test_calls_are_the_words_of_the_stack_that_are_addresses_in_code() -> None:
    process = EndingProcess()
    batch = process.batch(BASELINE_PC)
    calls = find_calls(batch, process.space, ((CALLER - 8, CALLER + 8),))
    assert [(call.lookup, call.function, call.lane, call.fp) for call in calls] == [
        (BASELINE_PC - 1, process.made.function, 0, FP),
        (CALLER - 1, 0, 0, 0),  # its frame is not in the copy
    ]
    batch.regs[0, X86_64.pc], batch.regs[0, X86_64.fp] = OPTIMIZED_PC, FP
    assert (OPTIMIZED_PC, process.made.function, FP) in {
        (call.lookup, call.function, call.fp) for call in find_calls(batch, process.space, ())
    }


def test_stacks_of_any_content_have_calls_within_their_copies() -> None:
    process, chosen = EndingProcess(), random.Random(1)
    edges = [LOW - 8, LOW, FP, LOW + SIZE - 8, LOW + SIZE, BASELINE_PC, (1 << 64) - 1, 0, 7]
    for _ in range(200):
        words = {LOW + 8 * at: chosen.choice(edges) for at in range(SIZE // 8)}
        batch = batch_of(X86_64, [MadeLane({}, words, [], LOW, SIZE)])
        batch.regs[0, X86_64.pc], batch.regs[0, X86_64.fp] = chosen.choice(edges), chosen.choice(edges)
        for call in find_calls(batch, process.space, ()):
            assert call.fp == 0 or LOW + 40 <= call.fp <= LOW + SIZE - 16
        process.v8.read_ahead(process.space, batch)
