"""Tests of WebAssembly functions in V8: their numbers in made jump tables, and in a running program."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.runtime_code.v8.functions import find_wasm_function, read_wasm_functions
from tests.jit.memory import Memory
from tests.live.support.recording import Recording, record, running
from tests.support import need

PROGRAM = Path(__file__).parent / "programs" / "wasm.js"
INSTANCE, TABLE, CODE = 0x10000, 0x40000, 0x60000
ENTRY = bytes.fromhex("554889e56a0856")
CALLS = {"wasm-function[4]": {"wasm-function[3]"}, "wasm-function[3]": {"wasm-function[2]", "back"}}
"""The functions of the program that each of its WebAssembly functions calls."""


def memory_of(count: int, stride: int, imports: int | None) -> Memory:
    """Return memory with an instance and the jump table of functions of 0x100 bytes each.

    Args:
        count: Number of functions.
        stride: Size of an entry of the jump table.
        imports: Number of imported functions, None if there are no entries of functions that are not compiled.
    """
    memory = Memory()
    memory.words(INSTANCE, 0x4001, TABLE + 8, 0x5001, TABLE, 7)
    each = 64 // stride
    size = -(-count // each) * 64
    table = bytearray(b"\xcc" * size)
    for at in range(count):
        place = at // each * 64 + at % each * stride
        table[place : place + 5] = b"\xe9" + struct.pack("<i", CODE + 0x100 * at - (TABLE + place + 5))
    lazy = b"".join(b"\x68" + struct.pack("<I", (imports or 0) + at) + b"\xe9" + bytes(4) for at in range(count))
    memory.put(TABLE, bytes(table) + bytes.fromhex("ff2502000000cccc") * 4 + (lazy if imports is not None else b""))
    memory.put(CODE, (ENTRY + b"\x90" * (0x100 - len(ENTRY))) * count + bytes(0x1000))
    return memory


@pytest.mark.parametrize("stride", [5, 8])
@pytest.mark.parametrize("count", [2, 12, 13, 200])
def test_functions_have_the_numbers_that_count_imported_ones(stride: int, count: int) -> None:
    memory = memory_of(count, stride, 3)
    functions = read_wasm_functions(memory.read, INSTANCE + 1)
    assert functions == {CODE + 0x100 * at: 3 + at for at in range(count)}
    assert find_wasm_function(memory.read, functions, CODE + 0x100) == (CODE + 0x100, 4)
    assert find_wasm_function(memory.read, functions, CODE + 0x1FF) == (CODE + 0x100, 4)


def test_numbers_are_unknown_if_all_functions_were_compiled_at_once() -> None:
    functions = read_wasm_functions(memory_of(4, 5, None).read, INSTANCE + 1)
    assert functions == {CODE + 0x100 * at: -1 for at in range(4)}


def test_code_that_is_not_in_the_jump_table_any_more_is_no_other_function() -> None:
    memory = memory_of(4, 5, 0)
    functions = read_wasm_functions(memory.read, INSTANCE + 1)
    del functions[CODE + 0x200]
    assert find_wasm_function(memory.read, functions, CODE + 0x240) is None
    assert find_wasm_function(memory.read, functions, CODE + 0x1C0) == (CODE + 0x100, 1)


def test_instance_without_a_jump_table_has_no_functions() -> None:
    memory = memory_of(4, 5, 0)
    memory.words(INSTANCE, 0x4001, TABLE + 64 * 99, 0)
    assert read_wasm_functions(memory.read, INSTANCE + 1) == {}
    assert read_wasm_functions(memory.read, 1) == {}
    assert find_wasm_function(memory.read, {CODE: 1}, (1 << 47) - 1) is None


def test_changed_tables_are_read_within_bounds() -> None:
    chosen = random.Random(1)
    for _ in range(300):
        memory = memory_of(chosen.randrange(1, 30), chosen.choice((5, 8)), 2)
        for _ in range(6):
            data = memory.pieces[chosen.choice((INSTANCE, TABLE, CODE))]
            at = chosen.randrange(len(data) - 4)
            data[at : at + 4] = chosen.choice((b"\xff" * 4, bytes(4), chosen.randbytes(4), b"\xe9" * 4))
        memory.reads = 0
        functions = read_wasm_functions(memory.read, INSTANCE + 1)
        for pc in (CODE, CODE + 0x777, TABLE, 0, (1 << 47) - 1):
            find_wasm_function(memory.read, functions, pc)
        assert memory.reads < 2000


def has_functions(recording: Recording) -> bool:
    return {name for stack in recording.stacks for name in stack} >= {"wasm-function[2]", "back"}


@pytest.mark.live
@pytest.mark.system
def test_running_functions_are_named_and_have_their_callers(tmp_path: Path) -> None:
    with running(need("node"), PROGRAM) as process:
        options = ("--collector", "auto", "--native", "none")
        recording = record(process.pid, tmp_path, *options, seconds=1, rate=499, until=has_functions)
    named = [
        [name for name in stack if name.startswith("wasm-function") or name == "back"] for stack in recording.stacks
    ]
    pairs = [pair for names in named for pair in pairwise(names)]
    assert [pair for pair in pairs if pair[1] not in CALLS.get(pair[0], ())] == []
    assert {"wasm-function[2]", "wasm-function[3]", "wasm-function[4]"} <= {name for names in named for name in names}
    unnamed = sum(n for stack, n in recording.stacks.items() if any(name.startswith("[JIT code") for name in stack))
    assert unnamed <= 0.02 * recording.samples
