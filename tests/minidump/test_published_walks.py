"""Tests with the walks of Breakpad's own unit tests, written as minidumps.

Modules, symbol files, stacks and registers of callers are transcribed from
src/processor/stackwalker_{x86,amd64,arm,arm64}_unittest.cc (Breakpad, BSD licence), under the names of these tests.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.minidump.support import Document, dump, functions, trusts
from tests.minidump.writer import MinidumpWriter, pdb70

PCS = {"x86": ("eip", "esp"), "amd64": ("rip", "rsp"), "arm": ("pc", "sp"), "arm64": ("pc", "sp")}


@dataclass(frozen=True)
class Walk:
    """A walk with its expected result.

    Attributes:
        processor: Processor of the dump.
        modules: (size, symbols) by base address.
        stack_at: Address of the stack.
        stack: Words of the stack from stack_at.
        registers: Registers of the innermost frame.
        frames: Expected registers of each caller.
        trust: Expected trust of the callers.
        names: Expected function names of all frames, None for an unknown one.
        absent: Registers that the callers must not have.
        options: Further options of pyprof dump.
    """

    processor: str
    modules: Mapping[int, tuple[int, str]]
    stack_at: int
    stack: Sequence[int]
    registers: Mapping[str, int]
    frames: Sequence[Mapping[str, int]]
    trust: Sequence[str] = ("breakpad",)
    names: Sequence[str | None] = ()
    absent: frozenset[str] = field(default_factory=frozenset)
    options: Sequence[str] = ()


def walked(walk: Walk, folder: Path) -> Document:
    """Return the only thread."""
    form = "<Q" if walk.processor in ("amd64", "arm64") else "<I"
    system = "windows" if any("STACK WIN" in symbols for _, symbols in walk.modules.values()) else "linux"
    writer = MinidumpWriter(walk.processor, system)
    stack = b"".join(struct.pack(form, word) for word in walk.stack)
    sp = PCS[walk.processor][1]
    writer.thread(7, {sp: walk.stack_at, **walk.registers}, walk.stack_at, stack)
    for number, (base, (size, symbols)) in enumerate(walk.modules.items(), 1):
        guid = bytes([number] * 16)
        writer.module(base, size, f"/module{number}", pdb70(guid, 1, f"module{number}"))
        identifier = guid.hex().upper() + "1"
        if symbols:
            place = folder / "symbols" / f"module{number}" / identifier
            place.mkdir(parents=True)
            head = f"MODULE {system} x {identifier} module{number}\n"
            (place / f"module{number}.sym").write_text(head + symbols)
    path = folder / "made.dmp"
    path.write_bytes(writer.build())
    (folder / "symbols").mkdir(exist_ok=True)
    (thread,) = dump(path, "--symbols", str(folder / "symbols"), *walk.options)["threads"]
    found: Document = thread
    return found


CFI_X86 = """\
FUNC 4000 1000 10 enchiridion
STACK CFI INIT 4000 100 .cfa: $esp 4 + .ra: .cfa 4 - ^
STACK CFI 4001 .cfa: $esp 8 + $ebx: .cfa 8 - ^
STACK CFI 4002 $esi: $ebx
STACK CFI 4003 .cfa: $esp 20 + $edi: .cfa 16 - ^
STACK CFI 4005 .ra: $edi
STACK CFI 4006 .cfa: $ebp 8 + $ebp: .cfa 12 - ^
FUNC 5000 1000 10 epictetus
STACK CFI INIT 5000 1000 .cfa: $esp .ra 0
"""
X86 = {"ebp": 0xC0D4AAB9, "ebx": 0x60F20CE6, "esi": 0x53D1379D, "edi": 0xAFBAE234}
X86_STACKS: dict[int, tuple[list[int], dict[str, int]]] = {
    0x4000: ([0x40005510], {}),
    0x4001: ([0x60F20CE6, 0x40005510], {"ebx": 0x91AA9A8B}),
    0x4002: ([0x60F20CE6, 0x40005510], {"ebx": 0x53D1379D, "esi": 0xA5C790ED}),
    0x4003: (
        [0x56EC3DB7, 0xAFBAE234, 0x53D67131, 0x60F20CE6, 0x40005510],
        {"ebx": 0x53D1379D, "esi": 0xA97F229D, "edi": 0xB05CC997},
    ),
    0x4004: (
        [0xE29782C2, 0xAFBAE234, 0x5BA29CE9, 0x60F20CE6, 0x40005510],
        {"ebx": 0x53D1379D, "esi": 0x0FB7DC4E, "edi": 0x993B4280},
    ),
    0x4005: (
        [0xE29782C2, 0xAFBAE234, 0x5BA29CE9, 0x60F20CE6, 0x8036CC02],
        {"ebx": 0x53D1379D, "esi": 0x0FB7DC4E, "edi": 0x40005510},
    ),
    0x4006: (
        [0xDCDD25CD, 0xAFBAE234, 0xC0D4AAB9, 0x60F20CE6, 0x8036CC02],
        {"ebp": 0x80000000 - 8, "ebx": 0x53D1379D, "esi": 0x743833C9, "edi": 0x40005510},
    ),
}

CFI_AMD64 = """\
FUNC 4000 1000 10 enchiridion
STACK CFI INIT 4000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI 4001 .cfa: $rsp 16 + $rbx: .cfa 16 - ^
STACK CFI 4002 $r12: $rbx
STACK CFI 4003 .cfa: $rsp 40 + $r13: .cfa 32 - ^
STACK CFI 4005 .ra: $r13
STACK CFI 4006 .cfa: $rbp 16 + $rbp: .cfa 24 - ^
FUNC 5000 1000 10 epictetus
STACK CFI INIT 5000 1000 .cfa: $rsp .ra 0
"""
AMD64 = {
    "rbp": 0x68995B1DE4700266,
    "rbx": 0x5A5BEEB38DE23BE8,
    "r12": 0xED1B02E8CC0FC79C,
    "r13": 0x1D20AD8ACACBE930,
    "r14": 0xE94CFFC2F7ADAA28,
    "r15": 0xB638D17D8DA413B5,
}
RBX, R13, RA64 = 0x5A5BEEB38DE23BE8, 0x1D20AD8ACACBE930, 0x00007400C0005510
AMD64_STACKS: dict[int, tuple[list[int], dict[str, int]]] = {
    0x4000: ([RA64], {}),
    0x4001: ([RBX, RA64], {"rbx": 0xBE0487D2F9EAFE29}),
    0x4002: ([RBX, RA64], {"rbx": 0xED1B02E8CC0FC79C, "r12": 0xB0118DE918A4BCEA}),
    0x4003: (
        [0x0E023828DFFD4D81, R13, 0x319E68B49E3ACE0F, RBX, RA64],
        {"rbx": 0xED1B02E8CC0FC79C, "r12": 0x89D04FA804C87A43, "r13": 0x5118E02CBDB24B03},
    ),
    0x4004: (
        [0x0E023828DFFD4D81, R13, 0x319E68B49E3ACE0F, RBX, RA64],
        {"rbx": 0xED1B02E8CC0FC79C, "r12": 0x89D04FA804C87A43, "r13": 0x5118E02CBDB24B03},
    ),
    0x4005: (
        [0x4B516DD035745953, R13, 0xA6D445E16AE3D872, RBX, 0xAA95FA054AEDFBAE],
        {"rbx": 0xED1B02E8CC0FC79C, "r12": 0x46B1B8868891B34A, "r13": RA64},
    ),
    0x4006: (
        [0x043C6DFCEB91AA34, R13, 0x68995B1DE4700266, RBX, 0xF015EE516AD89EAB],
        {"rbp": 0x8000000080000000 - 16, "rbx": 0xED1B02E8CC0FC79C, "r12": 0x26E007B341ACFEBD, "r13": RA64},
    ),
}

CFI_ARM = """\
FUNC 4000 1000 10 enchiridion
STACK CFI INIT 4000 100 .cfa: sp .ra: lr
STACK CFI 4001 .cfa: sp 12 + r4: .cfa 12 - ^ r11: .cfa 8 - ^ .ra: .cfa 4 - ^
STACK CFI 4002 r4: r0 r5: r1 r6: r2 r7: r3
STACK CFI 4003 .cfa: sp 16 + r1: .cfa 16 - ^ r4: r4 r5: r5 r6: r6 r7: r7
STACK CFI 4005 .cfa: sp 12 + r1: .cfa 12 - ^ r11: .cfa 4 - ^ .ra: .cfa ^ sp: .cfa 4 +
STACK CFI 4006 .cfa: sp 16 + pc: .cfa 16 - ^
FUNC 5000 1000 10 epictetus
STACK CFI INIT 5000 1000 .cfa: 0 .ra: 0
FUNC 6000 1000 20 palinal
STACK CFI INIT 6000 1000 .cfa: sp 4 - .ra: lr
FUNC 7000 1000 20 rhetorical
STACK CFI INIT 7000 1000 .cfa: moot .ra: ambiguous
"""
ARM = {
    **{"r4": 0xB5D55E68, "r5": 0xEBD134F3, "r6": 0xA31E74BC, "r7": 0x2DCB16B3, "r8": 0x2ADA2137},
    **{"r9": 0xBBBB557D, "r10": 0x48BF8CA7, "r11": 0x8112E110},
}
ARM_STACKS: dict[int, tuple[list[int], dict[str, int]]] = {
    0x4000: ([], {"lr": 0x40005510}),
    # pyprof reports program counters of Thumb code without the Thumb bit
    0x4002: (
        [0xFB81FF3D, 0x8112E110, 0x40005510],
        {
            **{"r0": 0xB5D55E68, "r1": 0xEBD134F3, "r2": 0xA31E74BC, "r3": 0x2DCB16B3, "r4": 0xFDD35466},
            **{"r5": 0xF18C946C, "r6": 0xAC2079E8, "r7": 0xA449829F, "r11": 0xBE145FC4},
        },
    ),
    0x4004: ([0x48C8DD5A, 0xCB78040E, 0x8112E110, 0x40005510], {"r1": 0xFB756319}),
    0x4006: ([0x40005510, 0x48C8DD5A, 0xF013F841, 0x8112E110, 0xF8D15783], {"r1": 0xFB756319}),
}
CFI_ARM64 = """\
FUNC 4000 1000 10 enchiridion
STACK CFI INIT 4000 100 .cfa: sp 0 + .ra: x30
STACK CFI 4001 .cfa: sp 32 + .ra: .cfa -8 + ^ x19: .cfa -32 + ^ x20: .cfa -24 + ^  x29: .cfa -16 + ^
STACK CFI 4002 x19: x0 x20: x1 x21: x2 x22: x3
STACK CFI 4003 .cfa: sp 40 + x1: .cfa 40 - ^ x19: x19 x20: x20 x21: x21 x22: x22
STACK CFI 4005 .cfa: sp 32 + x1: .cfa 32 - ^ x29: .cfa 8 - ^ .ra: .cfa ^ sp: .cfa 8 +
STACK CFI 4006 .cfa: sp 40 + pc: .cfa 40 - ^
FUNC 5000 1000 10 epictetus
STACK CFI INIT 5000 1000 .cfa: 0 .ra: 0
FUNC 6000 1000 20 palinal
STACK CFI INIT 6000 1000 .cfa: sp 8 - .ra: x30
FUNC 7000 1000 20 rhetorical
STACK CFI INIT 7000 1000 .cfa: moot .ra: ambiguous
"""
ARM64 = {
    **{"x19": 0x5E68B5D5B5D55E68, "x20": 0x34F3EBD1EBD134F3, "x21": 0x74BCA31EA31E74BC, "x22": 0x16B32DCB2DCB16B3},
    **{"x23": 0x21372ADA2ADA2137, "x24": 0x557DBBBBBBBB557D, "x25": 0x8CA748BF48BF8CA7, "x26": 0x21F0AB46AB4621F0},
    **{"x27": 0x146732B732B71467, "x28": 0xA673645FA673645F, "x29": 0xE11081128112E110},
}
FP64 = 0xE11081128112E110
ARM64_STACKS: dict[int, tuple[list[int], dict[str, int]]] = {
    0x4000: ([], {"x30": 0x40005510}),
    0x4001: (
        [0x5E68B5D5B5D55E68, 0x34F3EBD1EBD134F3, FP64, 0x40005510],
        {"x19": 0xADC9F635A635ADC9, "x20": 0x623135AC35AC6231, "x29": 0x5FC4BE14BE145FC4},
    ),
    0x4002: (
        [0xFF3DFB81FB81FF3D, 0x34F3EBD1EBD134F3, FP64, 0x40005510],
        {
            **{"x0": 0x5E68B5D5B5D55E68, "x1": 0x34F3EBD1EBD134F3, "x2": 0x74BCA31EA31E74BC},
            **{"x3": 0x16B32DCB2DCB16B3, "x19": 0xADC9F635A635ADC9, "x20": 0x623135AC35AC6231},
            **{"x21": 0xAC4543564356AC45, "x22": 0x2561562F562F2561, "x29": 0x5FC4BE14BE145FC4},
        },
    ),
    0x4003: (
        [0xDD5A48C848C8DD5A, 0xFF3DFB81FB81FF3D, 0x34F3EBD1EBD134F3, FP64, 0x40005510],
        {"x1": 0xFB756319FB756319, "x29": 0x5FC4BE14BE145FC4},
    ),
    0x4004: (
        [0xDD5A48C848C8DD5A, 0xFF3DFB81FB81FF3D, 0x34F3EBD1EBD134F3, FP64, 0x40005510],
        {"x1": 0xFB756319FB756319, "x29": 0x5FC4BE14BE145FC4},
    ),
    0x4005: (
        [0xDD5A48C848C8DD5A, 0xFF3DFB81FB81FF3D, 0x34F3EBD1EBD134F3, FP64, 0x40005510],
        {"x1": 0xFB756319FB756319},
    ),
    0x4006: (
        [0x40005510, 0xDD5A48C848C8DD5A, 0xFF3DFB81FB81FF3D, 0x34F3EBD1EBD134F3, FP64, 0xF8D157835783F8D1],
        {"x1": 0xFB756319FB756319},
    ),
}


def cfi_walk(processor: str, at: int) -> Walk:
    base, top, symbols, kept, stacks = {
        "x86": (0x40000000, 0x80000000, CFI_X86, X86, X86_STACKS),
        "amd64": (0x00007400C0000000, 0x8000000080000000, CFI_AMD64, AMD64, AMD64_STACKS),
        "arm": (0x40000000, 0x80000000, CFI_ARM, ARM, ARM_STACKS),
        "arm64": (0x40000000, 0x80000000, CFI_ARM64, ARM64, ARM64_STACKS),
    }[processor]
    pc, sp = PCS[processor]
    stack, changed = stacks[at]
    word = 8 if processor in ("amd64", "arm64") else 4
    wanted = {**kept, pc: base + 0x5510, sp: top}
    if processor in ("arm", "arm64") and at >= 0x4003:  # x1 and r1 although they are not callee-saved
        name = "x1" if processor == "arm64" else "r1"
        wanted[name] = 0xDD5A48C848C8DD5A if word == 8 else 0x48C8DD5A
    return Walk(
        processor,
        {base: (0x10000, symbols)},
        top - word * len(stack),
        [*stack, *[0] * 8],
        {**kept, **changed, pc: base + at},
        [wanted],
        names=("enchiridion", "epictetus"),
    )


STACKS = {"x86": X86_STACKS, "amd64": AMD64_STACKS, "arm": ARM_STACKS, "arm64": ARM64_STACKS}
CFI = [(processor, at) for processor, stacks in STACKS.items() for at in stacks]


def check(walk: Walk, thread: Document) -> None:
    shown = [
        {name: int(value, 16) for name, value in frame["registers"].items()}
        for frame in thread["frames"]
        if "registers" in frame
    ]
    assert len(shown) >= 1 + len(walk.frames)
    for found, wanted in zip(shown[1:], walk.frames, strict=False):
        assert {name: found.get(name) for name in wanted} == dict(wanted)
        assert not walk.absent & found.keys()
    assert trusts(thread)[1 : 1 + len(walk.trust)] == list(walk.trust)
    for found_name, wanted_name in zip(functions(thread), walk.names, strict=False):
        assert found_name == (wanted_name or "?")


@pytest.mark.parametrize(
    ("processor", "at"), CFI, ids=lambda value: value if isinstance(value, str) else f"At{value:x}"
)
def test_cfi(processor: str, at: int, tmp_path: Path) -> None:
    walk = cfi_walk(processor, at)
    thread = walked(walk, tmp_path)
    check(walk, thread)
    assert len(thread["frames"]) == 2


@pytest.mark.parametrize(("at", "reason"), [(0x6000, "RejectBackwards"), (0x7000, "RejectBadExpressions")])
@pytest.mark.parametrize("processor", ["arm", "arm64"])
def test_cfi_that_leads_nowhere(processor: str, at: int, reason: str, tmp_path: Path) -> None:
    symbols = CFI_ARM if processor == "arm" else CFI_ARM64
    registers = {"pc": 0x40000000 + at, "sp": 0x80000000, "lr": 0x40005510, "x30": 0x40005510}
    thread = walked(Walk(processor, {0x40000000: (0x10000, symbols)}, 0x80000000, [0] * 8, registers, []), tmp_path)
    assert len(thread["frames"]) == 1, reason


TOP = 0x80000000
WINDOWS = {
    "WindowsFrameData": Walk(
        "x86",
        {
            0x40000000: (
                0x10000,
                "STACK WIN 4 aa85 176 0 0 4 10 4 0 1 $T2 $esp .cbSavedRegs + = $T0 .raSearchStart = $eip $T0 ^ ="
                " $esp $T0 4 + = $ebx $T2 4  - ^ = $edi $T2 8  - ^ = $esi $T2 12 - ^ = $ebp $T2 16 - ^ =\n",
            )
        },
        TOP,
        [TOP + 36, 0xA7120D1A, 0x630891BE, 0x9068A878, 0xA08EA45F, 0x40001350, 0, 0, 0, 0, 0],
        {"eip": 0x4000AA85, "ebp": 0xF052C1DE},
        [
            {
                **{"eip": 0x40001350, "esp": TOP + 24, "ebp": TOP + 36, "ebx": 0x9068A878},
                **{"esi": 0xA7120D1A, "edi": 0x630891BE},
            }
        ],
    ),
    "WindowsFrameDataAligned": Walk(
        "x86",
        {
            0x40000000: (
                0x10000,
                "STACK WIN 4 aa85 176 0 0 4 4 8 0 1 $T1 .raSearch = $T0 $T1 4 - 8 @ = $ebp $T1 4 - ^ ="
                " $eip $T1 ^ = $esp $T1 4 + =",
            ),
            0x50000000: (0x10000, ""),
        },
        TOP,
        [0x0FFA0FFA, 0xDEADDEAD, 0xBEEFBEEF, 0, TOP + 28, 0x5000129D, 1, 0, 0],
        {"eip": 0x4000AA85, "ebp": TOP + 16},
        [{"eip": 0x5000129D, "esp": TOP + 24, "ebp": TOP + 28}],
        absent=frozenset({"ebx", "esi", "edi"}),
    ),
    "WindowsFrameDataParameterSize": Walk(
        "x86",
        {
            0x40000000: (0x10000, "FUNC 1000 100 c module1::wheedle\n"),
            0x50000000: (
                0x10000,
                "FUNC aa85 176 beef module2::whine\n"
                "STACK WIN 4 aa85 176 0 0 4 10 4 0 1 $T2 $esp .cbLocals + .cbSavedRegs + = $T0 .raSearchStart ="
                " $eip $T0 ^ = $esp $T0 4 + = $ebp $T0 20 - ^ = $ebx $T0 8 - ^ =\n",
            ),
            0x2A170000: (0x10000, "FUNC 9000 1000 0 caller\n"),  # Breakpad's test has no module here, see below
        },
        TOP,
        [
            *(0, 0, 0, 0, 0x6FA902E0, 0x5000AA95, 0xBAA0CB7A, 0xBDC92F9F, 0x0B1D8442, TOP + 72, 0xB1B90A15),
            *(0xF18E072D, 0x2558C7F3, 0x0365E25E, 0x2A179E38, 0, 0, 0, 0, 0),
        ],
        {"eip": 0x40001004, "ebp": TOP + 16},
        [
            {"eip": 0x5000AA95, "esp": TOP + 24, "ebp": 0x6FA902E0},
            {"eip": 0x2A179E38, "esp": TOP + 60, "ebp": TOP + 72, "ebx": 0x2558C7F3},
        ],
        trust=("fp", "breakpad"),
        names=("module1::wheedle", "module2::whine", "caller"),
    ),
    "WindowsFPOUnchangedEBP": Walk(
        "x86",
        {
            0x40000000: (
                0x10000,
                "FUNC e8a8 100 feeb module1::discombobulated\nSTACK WIN 0 e8a8 100 0 0 8 4 10 0 0 0\n",
            )
        },
        TOP,
        [0x7C521352, *[0x42424242] * 4, 0x40009B5B, 0xF60EA7FC, 0, 0],
        {"eip": 0x4000E8B8, "ebp": TOP + 28, "ebx": 0x1234},
        [{"eip": 0x40009B5B, "esp": TOP + 24, "ebp": TOP + 28, "ebx": 0x1234}],
        names=("module1::discombobulated", None),
    ),
    "WindowsFPOUsedEBP": Walk(
        "x86",
        {
            0x40000000: (
                0x10000,
                "FUNC 9aa8 e6 abbe module1::RaisedByTheAliens\nSTACK WIN 0 9aa8 e6 a 0 10 8 4 0 0 1\n",
            )
        },
        TOP,
        [TOP + 20, 0xB68BD5F9, 0xD25D05FC, 0x4000DEBE, 0xF0C9A974, 0, 0],
        {"eip": 0x40009AB8, "ebp": 0xECBDD1A5, "ebx": 0x1234},
        [{"eip": 0x4000DEBE, "esp": TOP + 16, "ebp": TOP + 20}],
        names=("module1::RaisedByTheAliens", None),
        absent=frozenset({"ebx"}),
    ),
    "WindowsFPOReferencesEBX": Walk(
        "x86",
        {
            0x776E0000: (
                0x142000,
                "PUBLIC 46bf4 0 KiFastSystemCallRet\nSTACK WIN 0 46bf4 1 0 0 0 0 0 0 0 0\n"
                "PUBLIC 46550 10 NtWaitForKeyedEvent\nSTACK WIN 0 46550 f 0 0 10 0 0 0 0 0\n"
                "PUBLIC 4965 10 RtlSleepConditionVariableSRW\n"
                "STACK WIN 4 4965 23 23 0 10 8 38 0 1 $T0 $ebx = $eip $T0 4 + ^ = $ebx $T0 ^ = $esp $T0 8 + = "
                "$ebp $ebp ^ = $L $ebp = $P $T0 8 + .cbParams + =\n"
                "STACK WIN 4 4988 e3 0 0 10 8 38 0 1 $T0 $ebx = $eip $T0 4 + ^ = $ebx $T0 ^ = $esp $T0 8 + = "
                "$ebp $ebp ^ = $L $ebp = $P $T0 8 + .cbParams + =\n",
            ),
            0x77250000: (
                0xD5000,
                "PUBLIC 3217a 10 SleepConditionVariableSRW\n"
                "STACK WIN 4 3217a 40 8 0 10 0 8 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + = "
                "$L $T0 .cbSavedRegs - = $P $T0 8 + .cbParams + =\n",
            ),
            0x5A710000: (0x2B7C000, "FUNC 4f4851 20 0 base::ConditionVariable::TimedWait\n"),
        },
        0x0026C048,
        [
            *(0x7772655C, 0x776E4A3F, 0, 0x0026C070, 0, 0, 1, 0x0026C168, 0, 0, 0, 0x0026C070, 0, 0, 0, 0x0026C164),
            *(0x00BE0000, 0x0026FC60, 0x0026C164, 0, 0xFFFFFFFE, 0, 0x0026C0D0, 0x7728219E, 0x3E8, 0, 0x7728219E),
            *(0x0026C168, 0x0026C164, 0, 0, 0x0026C168, 0x3E8, 0x3E8, 0x0026C0EC, 0x5AC0486C, 0x0026C168),
            *(0x0026C108, 0x5AC0484C, 0x0026C100, 0x0026C160),
        ],
        {"eip": 0x77726BF4, "ebp": 0x26C0A0, "ebx": 0x26C0AC},
        [{"eip": 0x7772655C}, {"eip": 0x776E4A3F}, {"eip": 0x7728219E}, {"eip": 0x5AC0486C}],
        trust=("breakpad",) * 4,
        names=(
            *("KiFastSystemCallRet", "NtWaitForKeyedEvent", "RtlSleepConditionVariableSRW"),
            *("SleepConditionVariableSRW", "base::ConditionVariable::TimedWait"),
        ),
    ),
    "WindowsFPOSystemCall": Walk(
        "x86",
        {
            0x771D0000: (0x180000, "PUBLIC 1f8ac c ZwWaitForSingleObject\nSTACK WIN 0 1f8ac 1b 0 0 c 0 0 0 0 0\n"),
            0x75F90000: (
                0x46000,
                "PUBLIC 109f9 c WaitForSingleObjectEx\nPUBLIC 36590 0 _except_handler4\n"
                "STACK WIN 4 109f9 df c 0 c c 48 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + = $L "
                "$T0 .cbSavedRegs - = $P $T0 8 + .cbParams + =\n",
            ),
            0x75730000: (
                0x110000,
                "PUBLIC 11136 8 WaitForSingleObject\nPUBLIC 11151 c WaitForSingleObjectExImplementation\n"
                "STACK WIN 4 11136 16 5 0 8 0 0 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + = $L "
                "$T0 .cbSavedRegs - = $P $T0 8 + .cbParams + =\n"
                "STACK WIN 4 11151 7a 5 0 c 0 0 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + = $L "
                "$T0 .cbSavedRegs - = $P $T0 8 + .cbParams + =\n",
            ),
            0x647F0000: (0x1BA8000, ""),
        },
        0x002FF290,
        [
            *(0x771EF8C1, 0x75FA0A91, 0x17B0, 0, 0x002FF2D8, 0x88014A2E, 0x002FF364, 0x17B0, 0, 0x24, 1),
            *(0, 0, 0, 0, 0, 0, 0, 0x9E3B9800, 0xFFFFFFF7, 0, 0x002FF2A4, 0x64A07FF1, 0x002FF8DC, 0x75FC6590),
            *(0xFDD2C6EA, 0, 0x002FF290 + 33 * 4, 0x75741194, 0x17B0, 0x0036EE80, 0, 0x65BC7D14),
            *(0x002FF290 + 38 * 4, 0x75741148, 0x17B0, 0x0036EE80, 0, 0, 0),
        ],
        {"eip": 0x771EF8C1, "ebp": 0x002FF290 + 27 * 4},
        [
            {"eip": 0x75FA0A91, "esp": 0x002FF290 + 8, "ebp": 0x002FF290 + 27 * 4},
            {"eip": 0x75741194, "ebp": 0x002FF290 + 33 * 4},
            {"eip": 0x75741148},
        ],
        trust=("breakpad",) * 3,
        names=(
            *("ZwWaitForSingleObject", "WaitForSingleObjectEx"),
            *("WaitForSingleObjectExImplementation", "WaitForSingleObject"),
        ),
    ),
}


@pytest.mark.parametrize("name", list(WINDOWS))
def test_windows(name: str, tmp_path: Path) -> None:
    check(WINDOWS[name], walked(WINDOWS[name], tmp_path))


def test_record_that_leads_into_no_module_gives_way_to_a_frame_pointer(tmp_path: Path) -> None:
    """Use a record whose sizes do not fit the frame, and a chain of frame pointers that continues."""
    symbols = "FUNC 1000 100 0 wheedle\nSTACK WIN 0 1000 100 0 0 0 0 0 0 0 0\n"
    walk = Walk(
        "x86",
        {0x40000000: (0x10000, symbols), 0x50000000: (0x10000, "FUNC 5000 1000 0 whine\n")},
        TOP,
        [0x1234, 0, 0, TOP + 32, 0x50005510, 0, 0, 0, 0, 0],
        {"eip": 0x40001004, "ebp": TOP + 12},
        [{"eip": 0x50005510, "esp": TOP + 20, "ebp": TOP + 32}],
        trust=("fp",),
        names=("wheedle", "whine"),
    )
    check(walk, walked(walk, tmp_path))
    own = replace(walk, stack=[0x50005510, *walk.stack[1:]], frames=[{"eip": 0x50005510}], trust=("breakpad",))
    (tmp_path / "own").mkdir()
    check(own, walked(own, tmp_path / "own"))


@pytest.mark.parametrize("record", ["STACK WIN 0 1000 100 0 0 0 0 0 0 0 0", "STACK WIN 4 1000 100 0 0 0 0 0 0 1 CODE"])
def test_record_that_leads_into_no_module_is_not_believed_alone(record: str, tmp_path: Path) -> None:
    symbols = "FUNC 1000 100 0 wheedle\n" + record.replace("CODE", "$eip .raSearch ^ = $esp .raSearch 4 + =") + "\n"
    registers = {"eip": 0x40001004, "ebp": 0}
    for word, frames in ((0x40005510, 2), (0x50005510, 1)):
        (tmp_path / str(frames)).mkdir()
        walk = Walk("x86", {0x40000000: (0x10000, symbols)}, TOP, [word, *[0] * 8], registers, [])
        thread = walked(walk, tmp_path / str(frames))
        assert (len(thread["frames"]), thread["end"]) == (frames, "no_rule")
        assert trusts(thread)[1:] == ["breakpad"] * (frames - 1)


SCAN = ("--unwind", "default,scan")
TOP64 = 0x8000000080000000
SCANNED = {
    "amd64 ScanWithoutSymbols": Walk(
        "amd64",
        {0x7400C0000000: (0x10000, ""), 0x7500B0000000: (0x10000, "")},
        TOP64,
        [
            *(0, 0, 0x7400B0000000, 0x7500D0000000, 0x7500B0000100, 0, 0, 0x7400B0000000, 0x7500D0000000),
            *(TOP64, 0x7500B0000900, 0, 0, 0, 0),
        ],
        {"rip": 0x7400C0000200, "rbp": TOP64 + 72},
        [
            {"rip": 0x7500B0000100, "rsp": TOP64 + 40, "rbp": TOP64 + 72},
            {"rip": 0x7500B0000900, "rsp": TOP64 + 88},
        ],
        trust=("scan", "scan"),
        options=SCAN,
    ),
    "amd64 ScanWithFunctionSymbols": Walk(
        "amd64",
        {
            0x7400C0000000: (0x10000, "FUNC 100 400 10 platypus\n"),
            0x7500B0000000: (0x10000, "FUNC 100 400 10 echidna\n"),
        },
        TOP64,
        [0, 0, 0x7400B0000000, 0x7500B0000000, 0x7400C0001000, 0x7500B000AAAA, 0x7500B0000110, 0, 0, 0, 0],
        {"rip": 0x7400C0000200, "rbp": TOP64 + 88},
        [{"rip": 0x7500B0000110, "rsp": TOP64 + 56, "rbp": TOP64 + 88}],
        trust=("scan",),
        names=("platypus", "echidna"),
        options=SCAN,
    ),
    "arm64 ScanWithoutSymbols": Walk(
        "arm64",
        {0x40000000: (0x10000, ""), 0x50000000: (0x10000, "")},
        TOP,
        [0, 0, 0x40090000, 0x60000000, 0x50000100, 0, 0, 0xF0000000, 0xD, 0x50000900, *[0] * 8],
        {"pc": 0x40005510},
        [{"pc": 0x50000100, "sp": TOP + 40}, {"pc": 0x50000900, "sp": TOP + 80}],
        trust=("scan", "scan"),
        options=SCAN,
    ),
    "arm64 ScanWithFunctionSymbols": Walk(
        "arm64",
        {
            0x40000000: (0x10000, "FUNC 100 400 10 monotreme\n"),
            0x50000000: (0x10000, "FUNC 100 400 10 marsupial\n"),
        },
        TOP,
        [0, 0, 0x40090000, 0x60000000, 0x40001000, 0x5000F000, 0x50000200, *[0] * 8],
        {"pc": 0x40000200},
        [{"pc": 0x50000200, "sp": TOP + 56}],
        trust=("scan",),
        names=("monotreme", "marsupial"),
        options=SCAN,
    ),
    "x86 TraditionalScan": Walk(
        "x86",
        {0x40000000: (0x10000, ""), 0x50000000: (0x10000, "")},
        TOP,
        [0xF065DC76, 0x46EE2167, 0xBAB023EC, TOP + 28, 0x4000129D, 0, 0, 0, 0],
        {"eip": 0x4000F49D, "ebp": 0xD43EED6E},
        [{"eip": 0x4000129D, "esp": TOP + 20, "ebp": TOP + 28}],
        trust=("scan",),
        options=SCAN,
    ),
}


@pytest.mark.parametrize("name", list(SCANNED))
def test_scan(name: str, tmp_path: Path) -> None:
    check(SCANNED[name], walked(SCANNED[name], tmp_path))


@pytest.mark.parametrize("name", list(SCANNED))
def test_scanning_not_allowed(name: str, tmp_path: Path) -> None:
    thread = walked(replace(SCANNED[name], options=()), tmp_path)
    assert "scan" not in trusts(thread)
