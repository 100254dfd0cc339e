"""Tests of inlined Java methods between safepoints, where HotSpot has no debugging information without options."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from pyprof.runtime_code.hotspot.active_inlined_methods import SampledScopes
from pyprof.runtime_code.hotspot.methods import InlineScopes
from pyprof.runtime_code.hotspot.vm_structs import VmMemory, VmStructs, read_flag
from tests.cli.support import pyprof
from tests.jit.memory import Memory
from tests.live.support.recording import Recording, record, running
from tests.support import need

OUTER, FIRST, SECOND = 0x10, 0x20, 0x30
DATA = bytes((0, 0, 1, 6, 1, 2, 4, 0, 1, 10, 7, 3, 5))
"""Four scopes: outer at 5; first in it at 3; outer at 9; second in that at 4."""
IN_FIRST, IN_OUTER, IN_SECOND = 4, 7, 10
CALL, NOPS, POLL = b"\xe8\0\0\0\0", b"\x48\x89\xc8" * 4, b"\x41\x85\x02"
"""A call; four times mov %rcx,%rax; the poll test %eax,(%r10)."""


def scopes(code: bytes, *points: tuple[int, int], is_dense: bool = False) -> SampledScopes:
    """Return what is known of code with points of (offset, scope)."""
    rows = [(-1, 0), *points, (len(code) + 1, 0)]
    pcs, at = tuple(pc for pc, _ in rows), tuple(scope for _, scope in rows)
    return SampledScopes(InlineScopes(pcs, at, DATA, (OUTER, FIRST, SECOND), False), code, is_dense)


def test_time_between_calls_of_two_inlined_methods_is_that_of_their_caller() -> None:
    code = CALL + NOPS + CALL + NOPS
    found = scopes(code, (5, IN_FIRST), (22, IN_SECOND))
    assert found.find(4) == ([(FIRST, (3,)), (OUTER, (5,))], False)
    assert found.find(21) == ([(SECOND, (4,)), (OUTER, (9,))], False)
    assert {pc: found.find(pc) for pc in (5, 8, 14)} == dict.fromkeys((5, 8, 14), ([(OUTER, (5, 9))], True))
    assert found.find(1) == ([(OUTER, ())], True)
    assert found.find(25) == ([(OUTER, ())], True)


def test_time_between_points_of_one_method_is_its_own_with_the_line_they_share() -> None:
    found = scopes(CALL + NOPS + CALL, (5, IN_FIRST), (22, IN_FIRST))
    assert found.find(10) == ([(FIRST, (3,)), (OUTER, (5,))], False)
    found = scopes(CALL + NOPS + CALL, (5, IN_OUTER), (22, IN_FIRST))
    assert found.find(10) == ([(OUTER, (9, 5))], True)


@pytest.mark.parametrize("entry", [b"\x90\x90", b"\x74\x06"], ids=["entry at its head", "jump into it"])
def test_loop_with_a_poll_belongs_to_the_method_of_the_poll(entry: bytes) -> None:
    loop = NOPS + POLL
    code = CALL + entry + loop + b"\x75" + struct.pack("<b", -len(loop) - 2) + NOPS + CALL
    found = scopes(code, (5, IN_OUTER), (19, IN_FIRST), (len(code), IN_SECOND))
    proven = [(FIRST, ()), (OUTER, (5,))], False
    assert found.find(10) == proven
    assert found.find(19) == ([(FIRST, (3,)), (OUTER, (5,))], False)
    assert found.find(len(code) - 8) == ([(OUTER, (5, 9))], True)


def test_code_with_points_between_safepoints_keeps_the_next_point() -> None:
    code = CALL + NOPS + CALL
    points = (5, IN_OUTER), (8, IN_FIRST), (14, IN_SECOND), (22, IN_OUTER)
    found = scopes(code, *points)
    assert found.is_dense
    assert found.find(6) == ([(FIRST, (3,)), (OUTER, (5,))], False)
    assert not scopes(code, points[0], points[3]).is_dense
    assert scopes(code, points[0], points[3], is_dense=True).find(6) == ([(OUTER, (9,))], False)


@pytest.mark.parametrize(("kind", "value"), [("JVMFlag", 1), ("Flag", 1), ("JVMFlag", 0)])
def test_boolean_option_of_the_machine_is_read(kind: str, value: int) -> None:
    memory = Memory()
    flags = struct.pack("<4Q", 0x1080, 0x1090, 0x10A0, 0x1091)
    memory.put(0x1000, struct.pack("<2Q", 0x1020, 2).ljust(32, b"\0") + flags.ljust(0x60, b"\0"))
    memory.pieces[0x1000][0x80:] = b"UseThis\0".ljust(16, b"\0") + bytes((0, value)).ljust(16, b"\0") + b"DebugIt\0"
    memory.pieces[0x1000] += bytes(0x1000)
    offsets = {(kind, "_name"): 0, (kind, "_addr"): 8}
    structs = VmStructs(offsets, {(kind, "flags"): 0x1000, (kind, "numFlags"): 0x1008}, {kind: 16}, {})
    vm = VmMemory(memory.read)
    assert read_flag(vm, structs, "DebugIt") is bool(value)
    assert not read_flag(vm, structs, "Other")


def count_leaves(recording: Recording) -> dict[str, int]:
    """Return the number of samples by innermost function."""
    leaves: dict[str, int] = {}
    for stack, n in recording.stacks.items():
        name = stack[-1].partition(" / ")[0]
        leaves[name] = leaves.get(name, 0) + n
    return leaves


def is_inlined(recording: Recording) -> bool:
    """Return True if most samples are in code that no longer calls alpha() and beta()."""
    leaves = count_leaves(recording)
    callers = sum(leaves.get(name, 0) for name in ("Inline.main", "Inline.work", "java.lang.String.valueOf"))
    return callers > max(100, 0.75 * recording.samples)


def has_samples(recording: Recording) -> bool:
    """Return True if the program's own code has most of the samples."""
    named = sum(n for name, n in count_leaves(recording).items() if name.startswith("Inline."))
    return named > max(100, 0.75 * recording.samples)


@pytest.mark.live
@pytest.mark.system
@pytest.mark.parametrize("is_dense", [False, True])
def test_inlined_loops_without_safepoints_never_count_for_a_sibling(tmp_path: Path, is_dense: bool) -> None:
    source = Path(__file__).parent / "programs" / "Inline.java"
    subprocess.run([need("javac"), "-d", str(tmp_path), str(source)], check=True, timeout=300)
    options = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+DebugNonSafepoints") if is_dense else ()
    command = need("java"), "-XX:+UseSerialGC", "-XX:-TieredCompilation", *options, "-cp", tmp_path, "Inline"
    with running(*command) as process:
        recording = record(process.pid, tmp_path, seconds=1, rate=499, until=has_samples if is_dense else is_inlined)
        doctor = pyprof("doctor", str(process.pid)).stdout
    leaves = count_leaves(recording)
    own = sum(leaves.get(f"Inline.{name}", 0) for name in ("main", "work", "alpha", "beta"))
    assert own > 0.75 * recording.samples, leaves
    assert leaves.get("java.lang.String.valueOf", 0) < 0.05 * recording.samples
    assert ("java_inlined_methods_unknown" in {each["name"] for each in recording.summary["counters"]}) is not is_dense
    assert ("java: inlined methods known only at safepoints" in doctor) is not is_dense
    if is_dense:
        assert leaves["Inline.alpha"] > 2 * leaves["Inline.beta"] > 0
