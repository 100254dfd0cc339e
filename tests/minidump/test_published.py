"""Tests with Breakpad's own example of a minidump: minidump2.dmp of src/processor/testdata.

The program is test_app.exe, 32-bit, on Windows XP. Registers, stack and modules are transcribed from
minidump2.dump.out, the STACK WIN records from symbols/test_app.pdb/5A9832E5287241C1838ED98914E9B7FF1/test_app.sym, the
expected stack from minidump2.stackwalk.out (Breakpad, BSD licence).
"""

from __future__ import annotations

from pathlib import Path

from tests.minidump.support import dump, functions, trusts
from tests.minidump.writer import MinidumpWriter, pdb70

STACK_AT = 0x12FE84
STACK = bytes.fromhex(
    "4500000070ff120000424000b8278700dc31917c00000000004c870000000020040000000000000007000000000000004042400000000000"
    "000000002e000000000000000cff12007b434100010000000700000084434100004d87002e39917cffffffff240000002400000027000000"
    "00000000584d870004000000b1944000244c87002a0000002f000000c0fe1200004d8700584d87000000a659b0b9a859015d400015aa4000"
    "00000000b4070000784e14000000000001000000f40b00000000000000000000bc070000b8070000f40b0000a8fa120000000000009c4000"
    "599c400094b240004f752a0fc0ff1200ec534000010000003039870050398700ff752a0f00002400a02024000050fd7f050000c001000000"
    "05000000000000000000240084ff1200acfa1200e0ff1200d06f4000a70b7a0f00000000f0ff1200d76f817c00002400a02024000050fd7f"
    "050000c0c8ff1200a8fa1200ffffffffa89a837ce06f817c0000000000000000000000004354400000000000"
)
REGISTERS = {
    "eip": 0x40429E,
    "esp": 0x12FE84,
    "ebp": 0x12FE88,
    "ebx": 0x7C80ABC1,
    "esi": 0x2,
    "edi": 0xA28,
    "eax": 0x45,
    "ecx": 0x12FE94,
    "edx": 0x42BC58,
}
WITH_EBP = "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + = $L $T0 .cbSavedRegs - = $P $T0 8 + .cbParams + ="
SYMBOLS = f"""\
MODULE windows x86 5A9832E5287241C1838ED98914E9B7FF1 test_app.pdb
FUNC 41b0 86 8 main
FUNC 4290 18 0 `anonymous namespace'::CrashFunction
FUNC 528d 1b6 0 __tmainCRTStartup
STACK WIN 4 41b0 86 13 0 8 0 e0 0 1 {WITH_EBP}
STACK WIN 4 4240 41 3 0 18 0 0 0 1 {WITH_EBP}
STACK WIN 4 4290 18 4 0 0 0 4 0 1 {WITH_EBP}
STACK WIN 4 528d 1b6 c 0 0 c 2c 0 1 {WITH_EBP}
STACK WIN 4 5405 14 0 0 0 c 2c 0 1 $T0 $ebp = $T2 $esp = $T1 .raSearchStart = $eip $T1 ^ = $ebp $T0 = $esp $T1 4 + =
"""
TEST_APP = bytes.fromhex("e532985a7228c141838ed98914e9b7ff")
KERNEL32 = bytes.fromhex("5c78e8bcb4574542a669896b6a19b954")


def write(folder: Path) -> tuple[Path, Path]:
    """Write the dump and a symbol store, and return their paths."""
    writer = MinidumpWriter("x86", "windows", version="Service Pack 2")
    handler = {"eip": 0x7C90EB94, "esp": 0x12F320, "ebp": 0x12F384}
    writer.thread(0xBF4, handler, STACK_AT, STACK)
    writer.module(0x400000, 0x2D000, "c:\\test_app.exe", pdb70(TEST_APP, 1, "c:\\test_app.pdb"))
    writer.module(0x7C800000, 0xF4000, "C:\\WINDOWS\\system32\\kernel32.dll", pdb70(KERNEL32, 2, "kernel32.pdb"))
    writer.exception(0xBF4, 0xC0000005, 0, 0x40429E, REGISTERS, 1, 0x45)
    path = folder / "minidump2.dmp"
    path.write_bytes(writer.build())
    store = folder / "symbols"
    place = store / "test_app.pdb" / "5A9832E5287241C1838ED98914E9B7FF1"
    place.mkdir(parents=True)
    (place / "test_app.sym").write_text(SYMBOLS)
    return path, store


def test_stack_is_the_published_one(tmp_path: Path) -> None:
    path, store = write(tmp_path)
    found = dump(path, "--symbols", str(store))
    (thread,) = found["threads"]
    frames = thread["frames"]
    assert functions(thread)[:3] == ["`anonymous namespace'::CrashFunction", "main", "__tmainCRTStartup"]
    assert [frame["module"] for frame in frames] == ["c:\\test_app.exe"] * 3 + ["C:\\WINDOWS\\system32\\kernel32.dll"]
    shown = [[frame["registers"][name] for name in ("eip", "esp", "ebp")] for frame in frames]
    assert shown == [
        ["0x40429e", "0x12fe84", "0x12fe88"],
        ["0x404200", "0x12fe90", "0x12ff70"],
        ["0x4053ec", "0x12ff78", "0x12ffc0"],
        ["0x7c816fd7", "0x12ffc8", "0x12fff0"],
    ]
    assert trusts(thread) == ["context", "breakpad", "breakpad", "breakpad"]
    assert frames[0]["registers"]["edi"] == "0xa28"
    assert frames[3]["rel"] == "0x16fd7"


def test_crash_is_the_published_one(tmp_path: Path) -> None:
    path, store = write(tmp_path)
    found = dump(path, "--symbols", str(store))
    assert (found["os"], found["arch"]) == ("windows", "i386")
    assert found["os_version"] == "5.1.2600 Service Pack 2"
    assert found["crash"]["reason"] == "EXCEPTION_ACCESS_VIOLATION_WRITE"
    assert found["crash"]["address"] == "0x45"
    assert found["exe"] == "c:\\test_app.exe"
    assert [module["debug_id"] for module in found["modules"]] == [
        "5A9832E5287241C1838ED98914E9B7FF1",
        "BCE8785C57B44245A669896B6A19B9542",
    ]
