"""Tests of the streams of minidumps in each of their forms, and of a minidump that LLVM's yaml2obj writes."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from pyprof.cli.dump_core import crash_reason
from pyprof.cli.main import run as main_run
from pyprof.errors import FormatError
from pyprof.objfile.byte_source import BytesSource, FileSource
from pyprof.objfile.minidump import read_minidump
from pyprof.objfile.minidump_content import CrashDump
from tests.minidump.support import dump, dump_and_complaints, functions
from tests.minidump.writer import Body, Microdump, MinidumpWriter, context, elf_record, pdb70
from tests.support import need

GUID = bytes(range(1, 17))
AT = 0x7000_0000


EXTENDED = 0xFFFFFFFF_C0001230


def read(writer: MinidumpWriter) -> CrashDump:
    return read_minidump(BytesSource(writer.build()))


def writer(processor: str = "amd64", system: str = "linux") -> MinidumpWriter:
    made = MinidumpWriter(processor, system)
    made.thread(7, {"rsp": AT, "esp": AT, "sp": AT}, AT, bytes(64))
    return made


YAML = """\
--- !minidump
Streams:
  - Type:            SystemInfo
    Processor Arch:  AMD64
    Processor Level: 6
    Number of Processors: 4
    Platform ID:     Linux
    CSD Version:     'Linux 6.1'
    CPU:
      Vendor ID:       GenuineIntel
      Version Info:    0x00000000
      Feature Info:    0x00000000
  - Type:            ModuleList
    Modules:
      - Base of Image:   0x0000000000400000
        Size of Image:   0x00001000
        Module Name:     '/srv/app/server'
        CodeView Record: '4C457042A1B2C3D4E5F60718293A4B5C6D7E8F9001020304'
  - Type:            ThreadList
    Threads:
      - Thread Id:       0x00001234
        Priority Class:  0x00000000
        Environment Block: 0x0000000000000000
        Context:         {context}
        Stack:
          Start of Memory Range: 0x00007FFF00001000
          Content:         '0000000000000000'
  - Type:            MemoryList
    Memory Ranges:
      - Start of Memory Range: 0x0000000000400100
        Content:         'DEADBEEF'
  - Type:            Exception
    Thread ID:       0x00001234
    Exception Record:
      Exception Code:  0x0000000B
      Exception Flags: 0x00000002
      Exception Address: 0x00000000CAFE0000
    Thread Context:  {context}
  - Type:            LinuxMaps
    Text:             |
      400000-401000 r-xp 00000000 08:01 5 /srv/app/server
...
"""


@pytest.mark.system
def test_dump_that_yaml2obj_wrote_is_read(tmp_path: Path) -> None:
    registers = {"rip": 0x400010, "rsp": 0x7FFF00001000, "rbx": 0xB0B}
    source, path = tmp_path / "dump.yaml", tmp_path / "made.dmp"
    source.write_text(YAML.format(context=context("amd64", registers).hex()))
    subprocess.run([yaml2obj(), str(source), "-o", str(path)], check=True, timeout=60)
    found = read_minidump(FileSource(os.open(path, os.O_RDONLY)))
    assert (found.os, found.processor, found.version) == ("linux", "amd64", "0.0.0 Linux 6.1")
    (thread,) = found.threads
    assert (thread.tid, thread.stack) == (0x1234, (0x7FFF00001000, 8))
    assert {name: thread.registers[name] for name in registers} == registers
    (module,) = found.modules
    assert (module.base, module.size, module.path) == (0x400000, 0x1000, "/srv/app/server")
    assert module.build_id == "a1b2c3d4e5f60718293a4b5c6d7e8f9001020304"
    assert module.debug_id == "D4C3B2A1F6E51807293A4B5C6D7E8F900"
    assert found.memory.read(0x400100, 8) == bytes.fromhex("deadbeef")
    assert found.exception is not None
    assert (found.exception.code, found.exception.flags, found.exception.address) == (11, 2, 0xCAFE0000)
    assert [(r.start, r.end, r.perms, r.path) for r in found.regions] == [
        (0x400000, 0x401000, "r-xp", "/srv/app/server")
    ]
    assert not found.oddities


def yaml2obj() -> str:
    tools = sorted(Path("/usr/bin").glob("yaml2obj*"))
    return str(tools[0]) if tools else need("yaml2obj")


def test_modules_are_identified_by_each_form_of_record() -> None:
    made = writer()
    made.module(0x1000, 0x1000, "/lib/a.so", elf_record("0102030405060708090a0b0c0d0e0f1011121314"))
    made.module(0x3000, 0x1000, "/lib/b.so", pdb70(GUID, 0, "b.so"))
    made.module(0x5000, 0x1000, "/lib/c.so", b"NB10" + struct.pack("<III", 0, 0x4711, 2) + b"c.pdb\0")
    made.module(0x7000, 0x1000, "/lib/d.so")
    made.module(0x9000, 0x1000, "/lib/e.so", pdb70(bytes(16), 0, ""))
    a, b, c, d, e = read(made).modules
    assert (a.build_id[:8], a.debug_id) == ("01020304", "0403020106050807090A0B0C0D0E0F100")
    assert (b.build_id, b.debug_id) == (GUID.hex(), "0403020106050807090A0B0C0D0E0F100")
    assert (c.debug_id, c.debug_name) == ("000047112", "c.pdb")
    assert (d.debug_id, e.debug_id) == ("", "")


def test_age_and_pdb_of_a_windows_module_are_its_own() -> None:
    made = writer("x86", "windows")
    made.module(0x400000, 0x1000, "C:\\app\\a.exe", pdb70(GUID, 0x1A, "D:\\build\\a.pdb"))
    (module,) = read(made).modules
    assert (module.debug_id[32:], module.debug_name, module.build_id) == ("1A", "a.pdb", "")


def test_permissions_of_windows_are_those_of_maps() -> None:
    made = writer("amd64", "windows")
    rows = [
        (AT, 0x1000, 0x1000, 0x20),
        (AT + 0x1000, 0x1000, 0x1000, 0x04),
        (AT + 0x2000, 0x1000, 0x10000, 0x01),
        (AT + 0x3000, 0x1000, 0x1000, 0x80),
    ]
    table = b"".join(
        struct.pack("<QQIIQIIII", start, AT, 0x80, 0, size, state, protection, 0x1000000, 0)
        for start, size, state, protection in rows
    )
    made.streams[16] = struct.pack("<IIQ", 16, 48, len(rows)) + table
    assert [(region.start - AT, region.perms) for region in read(made).regions] == [
        (0, "r-xp"),
        (0x1000, "rw-p"),
        (0x3000, "rwxp"),
    ]


def test_modules_are_made_up_from_maps_where_there_is_no_list() -> None:
    made = writer()
    made.streams[0x47670009] = b"1000-2000 r-xp 0 8:1 5 /a\n2000-3000 rw-p 0 8:1 5 /a\n5000-6000 rw-p 0 0:0 0 [stack]\n"
    found = read(made)
    assert [(module.base, module.size, module.path) for module in found.modules] == [(0x1000, 0x2000, "/a")]
    assert "minidump_without_modules" in found.oddities


@pytest.mark.parametrize(
    ("processor", "entry", "head"), [("amd64", "<QI4xQ", "<IIIxxxxQQQ"), ("x86", "<III", "<IIIIII")]
)
def test_modules_that_are_made_up_have_the_names_of_the_loaders_list(processor: str, entry: str, head: str) -> None:
    """Read MDRawDebug, whose layout depends on the target's compiler."""
    made = writer(processor)
    maps = b"1000-2000 r-xp 0 8:1 5 /app/base.apk\n5000-6000 r-xp 0 8:1 6 /lib/b.so\n"

    def dso(body: Body) -> bytes:
        table = struct.pack(entry, 0x1000, body.string("libreal.so"), 0) + struct.pack(
            entry, 0x5000, body.string(""), 0
        )
        return struct.pack(head, 1, body.add(table), 2, 0, 0, 0)

    made.streams |= {0x47670009: maps, 0x4767000A: dso}
    assert [(module.path, module.debug_name) for module in read(made).modules] == [
        ("/app/base.apk", "libreal.so"),
        ("/lib/b.so", "b.so"),
    ]


def test_memory_that_overlaps_is_read_once() -> None:
    made = writer()
    made.memory += [(AT + 32, b"A" * 64), (AT + 8, b"B" * 8)]
    found = read(made).memory
    assert found.read(AT, 200) == bytes(64) + b"A" * 32


def test_thread_that_wrote_the_dump_and_the_one_that_asked_are_told(tmp_path: Path) -> None:
    made = writer("amd64", "windows")
    made.thread(8, {"rsp": AT + 0x1000}, AT + 0x1000, bytes(64))
    made.thread(9, {"rsp": AT + 0x2000}, AT + 0x2000, bytes(64))
    made.streams[0x47670001] = struct.pack("<III", 3, 9, 8)
    made.streams[15] = struct.pack("<III", 24, 1, 4321) + bytes(12)
    made.names = {8: "worker", 9: "crash handler"}
    path = tmp_path / "asked.dmp"
    path.write_bytes(made.build())
    found = dump(path)
    listed = [(t["tid"], t["name"], t["state"]) for t in found["threads"]]
    assert listed == [(8, "worker", "asked for the dump"), (7, "", "stopped"), (9, "crash handler", "wrote the dump")]
    assert (found["pid"], found["crash"]) == (4321, None)


def test_dump_that_was_asked_for_is_no_crash(tmp_path: Path) -> None:
    made = writer()
    made.exception(7, 0xFFFFFFFF, 0, 0, {"rsp": AT, "rip": 0x1000})
    path = tmp_path / "requested.dmp"
    path.write_bytes(made.build())
    found = dump(path)
    assert found["crash"] is None
    assert found["threads"][0]["state"] == "asked for the dump"
    assert found["threads"][0]["frames"][0]["pc"] == "0x1000"


@pytest.mark.parametrize(
    ("system", "code", "parameters", "reason"),
    [
        ("windows", 0xC0000005, (0, 0x10), "EXCEPTION_ACCESS_VIOLATION_READ at 0x10"),
        ("windows", 0xC0000005, (8, 0x20), "EXCEPTION_ACCESS_VIOLATION_EXEC at 0x20"),
        ("windows", 0xC00000FD, (), "EXCEPTION_STACK_OVERFLOW at 0x99"),
        ("windows", 0x12345678, (), "exception 0x12345678 at 0x99"),
        ("linux", 7, (), "SIGBUS at 0x99"),
        ("linux", 6, (), "SIGABRT"),
        ("windows", 0xC0000409, (7,), "STATUS_STACK_BUFFER_OVERRUN FAST_FAIL_FATAL_APP_EXIT at 0x99"),
        ("windows", 0xC0000409, (50,), "STATUS_STACK_BUFFER_OVERRUN FAST_FAIL_HEAP_METADATA_CORRUPTION at 0x99"),
        ("windows", 0xC0000409, (77,), "STATUS_STACK_BUFFER_OVERRUN FAST_FAIL_KERNEL_POINTER_EXPECTED at 0x99"),
        ("windows", 0xC0000409, (16,), "STATUS_STACK_BUFFER_OVERRUN fast fail 16 at 0x99"),
        ("windows", 0xC0000409, (), "STATUS_STACK_BUFFER_OVERRUN at 0x99"),
        ("mac", 1, (), "EXC_BAD_ACCESS at 0x99"),
        ("mac", 99, (), "exception 0x63 at 0x99"),
        ("mac", 0x43506E78, (), "uncaught NSException"),
        ("ios", 0x43507378, (), "simulated exception at 0x99"),
    ],
)
def test_reason_is_said_in_words_of_the_system(
    system: str, code: int, parameters: tuple[int, ...], reason: str
) -> None:
    made = writer("amd64", system)
    made.exception(7, code, 0, 0x99, {"rsp": AT}, *parameters)
    found = read(made)
    crash = crash_reason(found.os, found.exception)
    assert crash is not None
    assert crash.text == reason


@pytest.mark.parametrize(("processor", "address"), [("x86", 0xC0001230), ("arm", 0xC0001230), ("amd64", EXTENDED)])
def test_address_of_a_crash_has_as_many_bits_as_the_process(processor: str, address: int) -> None:
    """Read sign-extended addresses, as Windows writes them for 32-bit processes."""
    made = writer(processor, "windows")
    made.exception(7, 0xC0000005, 0, EXTENDED, {}, 1, EXTENDED)
    found = read(made)
    assert found.exception is not None
    assert (found.exception.address, found.exception.parameters) == (address, (1, address))
    crash = crash_reason(found.os, found.exception)
    assert crash is not None
    assert crash.text == f"EXCEPTION_ACCESS_VIOLATION_WRITE at {address:#x}"


@pytest.mark.parametrize("pid", [1 << 31, (1 << 32) - 4])
def test_pid_that_no_process_has_is_the_first_threads(pid: int, tmp_path: Path) -> None:
    made = writer()
    made.streams[15] = struct.pack("<III", 24, 1, pid) + bytes(12)
    path = tmp_path / "pid.dmp"
    path.write_bytes(made.build())
    assert dump(path)["pid"] == 7


def test_file_of_another_build_is_not_used_and_named(tmp_path: Path) -> None:
    program = Path("/bin/true").resolve()
    made = writer()
    made.module(0x400000, 0x8000, str(program), elf_record("00" * 19 + "01"))
    made.exception(7, 11, 1, 0, {"rsp": AT, "rip": 0x402000})
    path = tmp_path / "other.dmp"
    path.write_bytes(made.build())
    found, said = dump_and_complaints(path, "--exe", str(program), code=3)
    assert functions(found["threads"][0]) == ["?"]
    assert "file differs from the mapped one: not used" in said
    assert "00000000000000000000000000000000" in said


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cut off"),
        (b"MDMP" + bytes(28), "not a minidump"),
        (b"MDMP" + struct.pack("<IIIIIQ", 0xA793, 0, 32, 0, 0, 0), "no system information"),
    ],
)
def test_file_that_is_no_dump_is_one_sentence(content: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read_minidump(BytesSource(content))


def test_dump_of_another_processor_is_refused_by_name() -> None:
    data = bytearray(writer().build())
    (rva,) = struct.unpack_from("<I", data, 32 + 8)
    data[rva : rva + 2] = struct.pack("<H", 3)
    with pytest.raises(FormatError, match="processor architecture 0x3 is not supported"):
        read_minidump(BytesSource(bytes(data)))


def test_broken_stream_costs_that_stream_only() -> None:
    made = writer()
    made.streams[16] = struct.pack("<IIQ", 16, 0, 5)
    made.streams[0x47670001] = b"\1"
    found = read(made)
    assert found.threads
    assert sum(found.oddities.values()) == 3


def test_dump_that_is_taken_for_a_core_is_told_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crash.dmp"
    path.write_bytes(writer().build())
    assert main_run(["dump", "--core", str(path)]) == 1
    assert f"pyprof dump --minidump {path}" in capfd.readouterr().err
    assert main_run(["dump", "--minidump", "/bin/true"]) == 1
    assert "neither a minidump nor a microdump" in capfd.readouterr().err


def test_microdump_far_down_a_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "logcat.txt"
    made = Microdump("arm", {"pc": 0x1000, "sp": 0x9000}, 0x9000, bytes(64))
    path.write_text("I/chatty( 1): so many words\n" * 60_000 + made.text())
    assert dump(path)["threads"][0]["frames"][0]["pc"] == "0x1000"
