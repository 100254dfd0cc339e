"""Tests of target descriptions and lists of threads and libraries, valid and broken."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.gdb_stub.stub_requests import StopReply, ThreadId
from pyprof.collectors.gdb_stub.target_modules import parse_libraries
from pyprof.collectors.gdb_stub.threads_and_registers import (
    Description,
    build_register_map,
    choose_arch,
    parse_description,
)
from pyprof.errors import RemoteError, UnsupportedArchitecture
from pyprof.model.arch import (
    AARCH64,
    AARCH64_BE,
    ARM,
    ARMEB,
    I386,
    PPC64LE,
    RISCV64,
    S390,
    S390X,
    X32,
    X86_64,
    Arch,
)

pytestmark = pytest.mark.fuzz

ARM_CORE = b"<feature name='org.gnu.gdb.arm.core'>%b</feature>" % b"".join(
    b"<reg name='%b' bitsize='32'/>" % name.encode() for name in ARM.registers
)


def described(files: dict[str, bytes]) -> Description:
    found = parse_description(files.get)
    assert found is not None
    return found


def test_included_features_are_laid_out_in_order_of_their_numbers() -> None:
    found = described(
        {
            "target.xml": b"<target><xi:include href='b.xml'/><xi:include href='a.xml'/></target>",
            "a.xml": b"<feature name='a'><reg name='r0' bitsize='32' regnum='0'/><reg name='r1' bitsize='64'/>"
            b"</feature>",
            "b.xml": b"<feature name='b'><reg name='late' bitsize='32' regnum='9'/></feature>",
        }
    ).registers()
    assert {name: (r.number, r.offset, r.size) for name, r in found.items()} == {
        "r0": (0, 0, 4),
        "r1": (1, 4, 8),
        "late": (9, 12, 4),
    }


def test_architecture_that_is_not_named_is_known_by_its_features() -> None:
    found = described({"target.xml": b"<target>%b</target>" % ARM_CORE})
    assert choose_arch(found, None) is ARM


def test_byte_order_is_that_of_the_program() -> None:
    found = described({"target.xml": b"<target><architecture>arm</architecture>%b</target>" % ARM_CORE})
    assert choose_arch(found, ARMEB) is ARMEB
    assert choose_arch(found, X86_64) is ARM


@pytest.mark.parametrize(
    ("name", "arch"),
    [("i386:x86-64", X86_64), ("i386", I386), ("armv7e-m", ARM), ("aarch64", AARCH64), ("s390:64-bit", S390X)],
)
def test_architecture_is_found_by_its_name(name: str, arch: Arch) -> None:
    assert choose_arch(Description(architecture=name), None) is arch


def test_architecture_without_rules_is_named() -> None:
    with pytest.raises(UnsupportedArchitecture, match="mips"):
        choose_arch(Description(architecture="mips:isa64r2"), None)


@pytest.mark.parametrize("arch", [X86_64, I386, ARM, ARMEB, AARCH64, S390X], ids=lambda arch: arch.name)
def test_stub_without_a_description_has_the_layout_that_gdb_takes_for_granted(arch: Arch) -> None:
    assert choose_arch(None, arch) is arch
    places = build_register_map(None, arch).places
    assert places[arch.pc] is not None
    assert places[arch.sp] is not None
    offsets = [place.offset for place in places if place is not None]
    assert len(set(offsets)) == len(offsets)


def test_stub_without_a_description_needs_the_program() -> None:
    with pytest.raises(RemoteError) as raised:
        choose_arch(None, None)
    assert "--exe" in raised.value.hint


def test_registers_that_the_packet_does_not_hold_are_asked_for_one_by_one() -> None:
    layout = build_register_map(None, ARM)
    packet = b"".join(n.to_bytes(4, "little").hex().encode() for n in range(14))
    values = layout.read_values(packet, lambda number: b"%02x000000" % (number + 1))
    assert values == [*range(14), 15, 16]


def test_thumb_bit_is_no_part_of_the_pc() -> None:
    packet = b"00000000" * 15 + b"01010000"
    assert build_register_map(None, ARM).read_values(packet, lambda _: b"")[15] == 0x100


@pytest.mark.parametrize(("text", "pid", "tid"), [("p1f.20", 0x1F, 0x20), ("1", 0, 1), ("p01.7ca1", 1, 0x7CA1)])
def test_thread_is_read_as_it_is_spelled(text: str, pid: int, tid: int) -> None:
    assert ThreadId.parse(text) == ThreadId(text, pid, tid)


@pytest.mark.parametrize(
    ("packet", "kind", "signal", "ended"),
    [
        (b"S05", "S", 5, False),
        (b"T0506:00;thread:p1.2;core:0;", "T", 5, False),
        (b"W0;process:1f", "W", 0, True),
        (b"X09", "X", 9, True),
        (b"N", "N", 0, True),
    ],
)
def test_stop_is_read(packet: bytes, kind: str, signal: int, ended: bool) -> None:
    stop = StopReply.parse(packet)
    assert (stop.kind, stop.signal, stop.is_end) == (kind, signal, ended)


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_stop_is_read_or_refused(packet: bytes) -> None:
    try:
        StopReply.parse(b"T" + packet)
        StopReply.parse(packet)
    except RemoteError:
        pass


REAL = (
    b'<library-list-svr4 version="1.0" main-lm="0x7f3e"><library name="/lib/libc.so.6" lm="0x7f"'
    b' l_addr="0x7f3ec3f7b000" l_ld="0x7f3ec414db60"/></library-list-svr4>'
)
TARGET = b"<target><architecture>arm</architecture>%b</target>" % ARM_CORE


def test_library_is_read() -> None:
    (library,) = parse_libraries(REAL)
    assert (library.name, library.bias, library.dynamic) == ("/lib/libc.so.6", 0x7F3EC3F7B000, 0x7F3EC414DB60)


@settings(max_examples=300)
@given(st.sampled_from([REAL, TARGET]), st.integers(0, 2000), st.binary(max_size=12))
def test_mutated_document_is_read_or_refused(document: bytes, at: int, put: bytes) -> None:
    at %= len(document)
    mutated = document[:at] + put + document[at + len(put) :]
    for read in (lambda: list(parse_libraries(mutated)), lambda: parse_description({"target.xml": mutated}.get)):
        with suppress(RemoteError):
            read()


@pytest.mark.parametrize(
    ("name", "elf", "arch"),
    [
        ("i386:x86-64:intel", None, X86_64),
        ("i386:x64-32", None, X32),
        ("i686", None, I386),
        ("iwmmxt2", None, ARM),
        ("aarch64", AARCH64_BE, AARCH64_BE),
        ("s390:31-bit", None, S390),
        ("riscv:rv64", None, RISCV64),
        ("powerpc:common64", PPC64LE, PPC64LE),
        ("powerpc:common64", None, None),
        ("aarch64:ilp32", None, None),
        ("riscv:rv32", None, None),
        ("powerpc:common", None, None),
    ],
)
def test_longest_name_counts_and_the_file_says_the_byte_order(name: str, elf: Arch | None, arch: Arch | None) -> None:
    if arch is None:
        with pytest.raises(UnsupportedArchitecture, match="no rules"):
            choose_arch(Description(architecture=name), elf)
    else:
        assert choose_arch(Description(architecture=name), elf) is arch
