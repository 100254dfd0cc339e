"""Rows of a file's CFI according to readelf and llvm-dwarfdump, in pyprof's notation.

As a script it compares whole files: python -m tests.unwind.cfi_oracles FILE...
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyprof.errors import FormatError
from pyprof.model.arch import Arch, find_arch
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import CfiTable, open_debug_frame, open_eh_frame
from pyprof.unwind.rule_text import describe_rule, register_name
from pyprof.unwind.rules import RegKind, RegRule, Rule
from tests.support import need
from tests.unwind.cfi_assembler import ra_column

Function = tuple[int, int, list[tuple[int, str]]]
"""(start, end, [(location, row)]) of a function, with equal neighbouring rows merged."""


def run(*command: str) -> str:
    done = subprocess.run([need(command[0]), *command[1:]], capture_output=True, timeout=300, check=False)
    return done.stdout.decode("utf-8", "replace")


def merge(start: int, end: int, rows: list[tuple[int, str]]) -> Function:
    merged: list[tuple[int, str]] = []
    for at, row in rows:
        if at >= end:
            break  # rows beyond the function's end
        if merged and merged[-1][0] == at:
            merged.pop()
        if not merged or merged[-1][1] != row:
            merged.append((at, row))
    return start, end, merged


# ---- rows of pyprof


def table_of(elf: ElfFile, section: str, arch: Arch) -> CfiTable:
    if section == ".eh_frame":
        frames = open_eh_frame(elf, arch, Diagnostics())
        assert frames is not None
        return frames._table
    debug = open_debug_frame(elf, arch, Diagnostics())
    assert debug is not None
    return debug._load()


def our_rows(path: str, section: str, row: str = "full") -> dict[int, Function]:
    """Return the rows of each FDE by its offset, with full detail or with that of readelf."""
    elf = ElfFile.open(path)
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
    assert arch is not None
    table = table_of(elf, section, arch)
    text: dict[Rule, str] = {}
    found = {}
    for offset in table.index.offset.tolist():
        fde = table.entries.fde(offset)
        try:
            rows = table.programs.rows(fde)
        except FormatError as error:
            found[offset] = fde.start, fde.end, [(fde.start, str(error))]
            continue
        words = []
        for at, rule in zip(rows.starts, rows.rules, strict=True):
            if rule not in text:
                text[rule] = (describe_rule if row == "full" else readelf_form)(rule, arch)
            words.append((at, text[rule].removesuffix("; signal").removesuffix("; pac")))
        found[offset] = merge(fde.start, fde.end, words)
    return found


# ---- llvm-dwarfdump: full detail, without functions with DW_CFA_restore_state, which version 14 ignores for the CFA

_LLVM_FDE = re.compile(r"([0-9a-f]{8,16}) [0-9a-f]+ [0-9a-f]+ FDE cie=[0-9a-f]+ pc=([0-9a-f]+)\.\.\.([0-9a-f]+)")
_LLVM_ROW = re.compile(r"  0x([0-9a-f]+): CFA=(.*)")


def llvm_rows(path: str, section: str) -> dict[int, Function]:
    elf = ElfFile.open(path)
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
    assert arch is not None
    option = {".eh_frame": "--eh-frame", ".debug_frame": "--debug-frame"}[section]
    found: dict[int, Function] = {}
    current: tuple[int, int, int] | None = None
    rows: list[tuple[int, str]] = []
    known: dict[str, str] = {}
    here = restores = False

    def close() -> None:
        if current and not restores:
            found[current[0]] = merge(current[1], current[2], rows)

    for line in run("llvm-dwarfdump", option, path).splitlines():
        if line.startswith("."):
            here = line.startswith(section + " ")
        elif not here:
            continue
        elif match := _LLVM_FDE.match(line):
            close()
            current = int(match[1], 16), int(match[2], 16), int(match[3], 16)
            rows, restores = [], False
        elif "DW_CFA_restore_state" in line:
            restores = True
        elif match := _LLVM_ROW.match(line):
            if match[2] not in known:
                known[match[2]] = llvm_row(match[2], arch)
            rows.append((int(match[1], 16), known[match[2]]))
    close()
    return found


def llvm_row(text: str, arch: Arch) -> str:
    cfa, _, rest = text.partition(": ")
    regs: dict[int, str] = {}
    ra = register_name(arch, ra_column(arch))
    for part in re.split(r", (?=[A-Z][A-Z0-9]*=)", rest) if rest else ():
        name, _, value = part.partition("=")
        column = _llvm_column(name, arch)
        if column is None:
            continue
        own = register_name(arch, column)
        words = own if value == "same" else _llvm_value(value, arch)
        if column == ra_column(arch):
            ra = words
        if column != arch.pc:
            regs[column] = words
    parts = [f"cfa = {_llvm_value(cfa, arch)}"]
    parts += [f"{register_name(arch, column)} = {value}" for column, value in sorted(regs.items())]
    return "; ".join([*parts, f"ra = {ra}"])


def _llvm_column(name: str, arch: Arch) -> int | None:
    name = name.lower().removeprefix("reg")
    if name.isdigit():
        return arch.dwarf.get(int(name))
    # LLVM 14 prints WSP and W29 for sp and x29, and R15D for r15.
    names = {f"w{n}": n for n in range(31)} | {"wsp": 31} if arch.name == "aarch64" else {}
    names |= {n: column for column, n in enumerate(arch.registers)}
    return names.get(name.removesuffix("d") if arch.name == "s390x" else name)


def _llvm_value(value: str, arch: Arch) -> str:
    deref = value.startswith("[")
    value = value.strip("[]")
    if value.startswith("DW_OP"):
        words = []
        for word in value.split(", "):
            name, *args = word.removeprefix("DW_OP_").split(" ")
            if name.startswith("breg"):
                signed = re.search(r"[+-]", args[0])
                assert signed
                args = [args[0][signed.start() :]]
            elif name == "bregx":
                raise AssertionError("no bregx expected")
            words.append(" ".join([name, *(str(int(a, 0)) for a in args)]))
        based = re.fullmatch(r"breg(\d+) (-?\d+)((?:; deref)?)", "; ".join(words))
        if based and not (based[3] and deref):
            deref = deref or bool(based[3])
            value = _plus(register_name(arch, arch.dwarf[int(based[1])]), int(based[2]))
        else:
            value = f"expr({'; '.join(words)})"
    elif value != "undefined":
        operand = re.match(r"([A-Za-z0-9_]+)([+-]?)(\d*)", value)
        assert operand, value
        base, sign, n = operand.groups()
        if base != "CFA":
            column = _llvm_column(base, arch)
            base = "?" + base if column is None else register_name(arch, column)
        value = _plus(base.lower() if base == "CFA" else base, int(sign + n) if n else 0)
    return f"[{value}]" if deref else value


def _plus(base: str, n: int) -> str:
    return f"{base} {'-' if n < 0 else '+'} {abs(n)}" if n else base


# ---- readelf: prints "exp" for expressions and "u" for both undefined and unmentioned registers

_READELF_FDE = re.compile(r"([0-9a-f]{8,16}) [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_READELF_CIE = re.compile(r"([0-9a-f]{8,16}) [0-9a-f]+ [0-9a-f]+ CIE")


def readelf_rows(path: str, section: str) -> dict[int, Function]:
    elf = ElfFile.open(path)
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
    assert arch is not None
    found: dict[int, Function] = {}
    cies: dict[int, list[tuple[int, str]]] = {}
    current: tuple[int, int, int, int] | None = None
    rows: list[tuple[int, str]] = []
    columns: list[str] = []
    names = {*arch.registers, "ra"}
    here = False

    def close() -> None:
        if current:
            offset, cie, start, end = current
            # readelf prints nothing for a function whose instructions change nothing.
            found[offset] = merge(start, end, rows or [(start, cies[cie][0][1])])

    for line in run("readelf", "--debug-dump=frames-interp", "-W", path).splitlines():
        if line.startswith("Contents of the "):
            here = f" {section} " in line or f" {section.replace('.debug', '.zdebug')} " in line
        elif not here:
            continue
        elif match := _READELF_FDE.match(line):
            close()
            offset, cie, start, end = (int(g, 16) for g in match.groups())
            current, rows = (offset, cie, start, end), []
        elif match := _READELF_CIE.match(line):
            close()
            current, rows = None, []
            cies[int(match[1], 16)] = rows
        elif line.startswith("   LOC"):
            columns = line.split()[2:]
        elif re.match(r"[0-9a-f]{8,16} ", line) and "ZERO terminator" not in line:
            at, cfa, *values = re.sub(r"r\d+ ?\((\w+)\)", r" \1 ", line).split()
            cells = dict(zip(columns, values, strict=True))
            regs = [f"{n}={v}" for n, v in sorted(cells.items()) if v != "u" and n in names]
            rows.append((int(at, 16), " ".join([cfa, *regs])))
    close()
    return found


def readelf_form(rule: Rule, arch: Arch) -> str:
    """Return a rule as readelf prints it, as far as readelf can express it."""

    def cell(name: str, reg: RegRule) -> str:
        match reg.kind:
            case RegKind.SAME:
                return f"{name}=s"
            case RegKind.AT_CFA:
                return f"{name}=c{reg.n:+d}"
            case RegKind.CFA_PLUS:
                return f"{name}=v{reg.n:+d}"
            case RegKind.REG_PLUS if not reg.n:
                return f"{name}={arch.registers[reg.reg]}"
            case RegKind.UNDEFINED:
                return ""
            case RegKind.EXPR | RegKind.REG_PLUS:
                return f"{name}=vexp"
            case _:
                return f"{name}=exp"

    cfa = f"{arch.registers[rule.cfa_reg]}{rule.cfa_off:+d}"
    if rule.cfa_reg < 0 or rule.cfa_deref:
        cfa = "exp"
    cells = [cell(arch.registers[c], r) for c, r in rule.regs if c != ra_column(arch)]
    if rule.ra != RegRule(RegKind.REG_PLUS, 0, ra_column(arch)) and rule.ra.kind != RegKind.SAME:
        cells.append(cell("ra", rule.ra))
    return " ".join([cfa, *sorted(c for c in cells if c)])


def differences(ours: dict[int, Function], theirs: dict[int, Function], *, covering: bool = True) -> Iterator[str]:
    """Yield one line for each FDE that differs. With covering=True empty FDEs are left out."""
    for offset in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(offset), theirs.get(offset)
        if other is not None and covering and other[1] <= other[0]:
            other = None
        if mine is None and other is None:
            continue
        if mine is None or other is None:
            yield f"{offset:#x}: only {'theirs' if mine is None else 'ours'}: {mine or other}"
        elif mine != other:
            rows = [(a, b) for a, b in zip(mine[2], other[2], strict=False) if a != b]
            where = rows[0] if rows else (len(mine[2]), len(other[2]))
            yield f"{offset:#x}: {mine[0]:#x}..{mine[1]:#x} {other[0]:#x}..{other[1]:#x}: {where}"


def main() -> None:
    for path in sys.argv[1:]:
        elf = ElfFile.open(path)
        for section in (".eh_frame", ".debug_frame"):
            if elf.section(section) is None:
                continue
            full, short = our_rows(path, section), our_rows(path, section, "readelf")
            for name, ours, theirs in (
                ("llvm-dwarfdump", full, llvm_rows(path, section)),
                ("readelf", short, readelf_rows(path, section)),
            ):
                if name == "llvm-dwarfdump":
                    ours = {offset: function for offset, function in ours.items() if offset in theirs}
                lines = list(differences(ours, theirs))
                rows = sum(len(f[2]) for f in theirs.values())
                print(f"{Path(path).name} {section} {name}: {len(theirs)} FDEs, {rows} rows, {len(lines)} differ")
                for line in lines[:10]:
                    print("   ", line)


if __name__ == "__main__":
    main()
