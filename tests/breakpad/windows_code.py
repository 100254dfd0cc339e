"""Windows modules built with clang and lld, and symbol files that contain what dump_syms writes on Windows.

STACK WIN comes from the PDB's frame data (32 bits), STACK CFI from UNWIND_INFO (64 bits), both printed by LLVM's tools.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support import PROGRAMS, need

TRIPLES = {"x86_64": "x86_64-pc-windows-msvc", "i386": "i686-pc-windows-msvc"}


def run(*command: str) -> str:
    done = subprocess.run([need(command[0]), *command[1:]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def module(arch: str, folder: Path, *link: str) -> Path:
    """Build the DLL with its PDB and map next to it, and return its path."""
    path = folder / f"spin-{arch}.dll"
    made = path.with_suffix(".obj")
    flags = ("-O2", "-g", "-gcodeview", "-fomit-frame-pointer", "-fasynchronous-unwind-tables", "-ffreestanding")
    run("clang", f"--target={TRIPLES[arch]}", *flags, "-c", str(PROGRAMS / "pe_spin.c"), "-o", str(made))
    outputs = (f"/out:{path}", f"/pdb:{path.with_suffix('.pdb')}", f"/map:{path.with_suffix('.map')}")
    run("lld-link", "/dll", "/noentry", "/nodefaultlib", "/debug", *outputs, *link, str(made))
    return path


def identifier(path: Path) -> str:
    """Return GUID and age of the PDB in Breakpad's notation."""
    text = run("llvm-readobj", "--coff-debug-directory", str(path))
    found = re.search(r"PDBGUID: \((.*?)\)\s+PDBAge: (\d+)", text, re.DOTALL)
    assert found is not None, text
    raw = bytes.fromhex(found[1].replace(" ", ""))
    return (raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]).hex().upper() + f"{int(found[2]):X}"


def functions(path: Path) -> list[tuple[int, str]]:
    """Return (rva, name) of the functions in the linker's map in ascending order."""
    text = path.with_suffix(".map").read_text()
    base = int(re.search(r"Preferred load address is ([0-9a-f]+)", text)[1], 16)  # type: ignore[index]
    rows = re.findall(r"^ 0001:[0-9a-f]{8}\s+(\S+)\s+([0-9a-f]+)", text, re.MULTILINE)
    return sorted((int(avma, 16) - base, re.sub(r"^_|@\d+$", "", name)) for name, avma in rows)


def frame_data(path: Path) -> list[str]:
    """Return STACK WIN records of the PDB's frame data."""
    lines = []
    for row in run("llvm-pdbutil", "dump", "-fpo", str(path.with_suffix(".pdb"))).splitlines():
        fields = [field.strip() for field in row.split("|")]
        if len(fields) != 11 or not re.fullmatch("[0-9A-F]{8}", fields[0]):
            continue
        code, local, params, most, prolog, saved = map(int, fields[1:7])
        sizes = f"{code:x} {prolog:x} 0 {params:x} {saved:x} {local:x} {most:x}"
        lines.append(f"STACK WIN 4 {int(fields[0], 16):x} {sizes} 1 {fields[10]}")
    assert lines
    return lines


def unwind_info(path: Path) -> list[str]:
    """Return STACK CFI records of .pdata and .xdata."""
    lines: list[str] = []
    text = run("llvm-readobj", "--unwind", str(path))
    base = int(re.search(r"ImageBase: (0x[0-9A-F]+)", run("llvm-readobj", "--file-headers", str(path)))[1], 16)  # type: ignore[index]
    for entry in text.split("RuntimeFunction {")[1:]:
        start, end = (int(found, 16) - base for found in re.findall(r"(?:Start|End)Address: \((0x[0-9A-F]+)\)", entry))
        lines.append(f"STACK CFI INIT {start:x} {end - start:x} .cfa: $rsp 8 + .ra: .cfa 8 - ^")
        size = 8
        for at, what, operand in reversed(re.findall(r"(0x[0-9A-F]+): (\w+) (\S+)", entry)):
            value = operand.partition("=")[2]
            size += 8 if what == "PUSH_NONVOL" else int(value)
            assert what in ("PUSH_NONVOL", "ALLOC_SMALL", "ALLOC_LARGE")
            saved = f" ${value.lower()}: .cfa {size} - ^" if what == "PUSH_NONVOL" else ""
            lines.append(f"STACK CFI {start + int(at, 16):x} .cfa: $rsp {size} +{saved}")
    assert lines
    return lines


def symbols(arch: str, path: Path, store: Path) -> None:
    """Write the symbol file at its path in a symbol store."""
    name, found = path.with_suffix(".pdb").name, functions(path)
    lines = [f"MODULE windows {'x86_64' if arch == 'x86_64' else 'x86'} {identifier(path)} {name}"]
    ends = [rva for rva, _ in found[1:]] + [found[-1][0] + 0x40]
    lines += [f"FUNC {rva:x} {end - rva:x} 0 {function}" for (rva, function), end in zip(found, ends, strict=True)]
    lines += unwind_info(path) if arch == "x86_64" else frame_data(path)
    place = store / name / identifier(path)
    place.mkdir(parents=True)
    (place / f"{path.stem}.sym").write_text("\r\n".join([*lines, ""]))
