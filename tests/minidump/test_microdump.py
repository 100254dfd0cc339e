"""Tests of microdumps: text of the log around them, and malformed lines."""

from __future__ import annotations

import pytest

from pyprof.errors import FormatError
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.minidump import read_microdump
from pyprof.objfile.minidump_content import CrashDump
from tests.minidump.writer import Microdump

STACK = bytes(range(256)) * 3
MODULES = [
    (0x4000_0000, 0x1000, "0123456789ABCDEF0123456789ABCDEF0", "libchrome.so"),
    (0x4100_0000, 0x2000, "0123456789abcdef0123456789abcde10", "name with spaces.so"),
]


def read(text: str) -> CrashDump:
    return read_microdump(BytesSource(text.encode()))


@pytest.mark.parametrize(
    "before", ["", "W/google-breakpad( 4462): ", "08-26 15:00:17.092  6517  6320 W google-breakpad: "]
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("processor", ["arm", "arm64", "x86", "amd64"])
def test_words_of_the_log_do_not_matter(processor: str, before: str, line_end: str) -> None:
    registers = {"pc": 0x4000_0123, "eip": 0x4000_0123, "rip": 0x4000_0123, "sp": 0x9000, "esp": 0x9000, "rsp": 0x9000}
    made = Microdump(processor, registers, 0x9000, STACK, MODULES, before=before, line_end=line_end)
    found = read("something else: S 1 2\n" + made.text() + "V/other: S 0000 11\n")
    assert (found.os, found.processor) == ("android", processor)
    (thread,) = found.threads
    assert {name: value for name, value in registers.items() if name in thread.registers}.items() <= (
        thread.registers.items()
    )
    assert thread.stack == (0x9000, len(STACK))
    assert found.memory.read(0x9000, 1000) == STACK
    assert [(m.base, m.size, m.debug_id, m.path) for m in found.modules] == [
        (base, size, ident.upper(), name) for base, size, ident, name in MODULES
    ]
    assert found.exception is not None
    assert (found.exception.code, found.exception.name, found.exception.address) == (11, "SIGSEGV", 0x45)
    assert not found.oddities


def test_old_form_without_reason_and_with_other_lines_is_read() -> None:
    text = Microdump("arm", {"pc": 0x10}, 0x9000, STACK).text()
    kept = [line for line in text.splitlines() if ": R " not in line and ": P " not in line]
    found = read("\n".join(kept))
    assert found.exception is None
    assert found.requested_by == found.threads[0].tid


def test_malformed_lines_are_counted_and_left_out() -> None:
    text = Microdump("arm", {"pc": 0x10}, 0x9000, STACK, MODULES).text()
    text = text.replace("M 40000000 ", "M 4000zz00 ").replace("S 00009000 ", "S 00009000 zz", 1)
    found = read(text)
    assert found.oddities["microdump_line_invalid"] == 2
    assert [module.path for module in found.modules] == ["name with spaces.so"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("BEGIN BREAKPAD", "BEGIN NOTHING", "no microdump"),
        ("O A arm", "O A mips", "no processor"),
        (": C ", ": D ", "no registers"),
    ],
)
def test_what_lacks_its_parts_is_one_sentence(old: str, new: str, problem: str) -> None:
    text = Microdump("arm", {"pc": 0x10}, 0x9000, STACK).text()
    with pytest.raises(FormatError, match=problem):
        read(text.replace(old, new))


def test_registers_that_the_writer_cut_off_are_read_as_far_as_they_are_there() -> None:
    """Truncate lines to 2047 bytes as Breakpad's writer does: an x86_64 context needs 2464."""
    lines = Microdump("amd64", {"rip": 0x1234, "rsp": 0x9000}, 0x9000, STACK, MODULES, before="").text().splitlines()
    found = read("\n".join(line[:2047] for line in lines))
    assert (found.threads[0].registers["rip"], len(found.modules)) == (0x1234, 2)
    assert not found.oddities


@pytest.mark.parametrize(("processor", "address"), [("x86", 0xDEADBEEF), ("amd64", 0xFFFFFFFF_DEADBEEF)])
def test_address_of_the_crash_has_as_many_bits_as_the_process(processor: str, address: int) -> None:
    made = Microdump(processor, {}, 0x9000, STACK, MODULES, reason="0000000B SIGSEGV FFFFFFFFDEADBEEF")
    found = read(made.text()).exception
    assert found is not None
    assert found.address == address
