"""Tests of written symbol files: rows, names, lines and inlined calls equal those of the ELF file."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
from bisect import bisect_right
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from pyprof.model.arch import Arch
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import BytesSource
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.breakpad_names import SymbolFileNames
from pyprof.symbolize.demangle import demangle
from pyprof.tools.breakpad_writer import SymbolWriter, Written
from pyprof.unwind.formats.breakpad_stack_cfi import StackCfi
from pyprof.unwind.module_unwind_sources import READERS
from pyprof.unwind.rules import SAME, UNDEFINED, FunctionRows, RegKind, Rule
from tests import warm
from tests.live.support.ladders import ladder
from tests.support import build, need
from tests.symbolize.test_source_lines import PROGRAMS, reference
from tests.unwind.sframe.fixtures import FOLDER as FIXTURES

pytestmark = pytest.mark.system

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def written(path: Path) -> tuple[SymbolWriter, bytes, Written]:
    writer, out = SymbolWriter(str(path)), io.BytesIO()
    done = writer.write(out)
    return writer, out.getvalue(), done


def read_back(data: bytes) -> tuple[SymbolFile, Diagnostics]:
    diagnostics = Diagnostics()
    return SymbolFile(BytesSource(data), "written.sym", diagnostics), diagnostics


def meaning(rule: Rule, arch: Arch) -> tuple[object, ...]:
    """Return the effect of a rule, without registers that keep their default, and with expressions as lost
    registers.
    """
    regs = {}
    for column, how in rule.regs:
        if how.kind in (RegKind.EXPR, RegKind.AT_EXPR):
            how = UNDEFINED
        if how != (SAME if column in arch.callee_saved else UNDEFINED):
            regs[column] = how
    return rule.cfa_reg, rule.cfa_off, rule.cfa_deref, rule.cfa_expr, rule.ra, tuple(sorted(regs.items()))


def rows_of(function: FunctionRows) -> list[tuple[int, int, Rule]]:
    return list(zip(function.starts, [*function.starts[1:], function.end], function.rules, strict=True))


def arm_program(folder: Path) -> Path:
    """Build an ARM library whose only unwind table is .ARM.exidx."""
    source = folder / "arm.c"
    source.write_text("int g(int *); int f(int n) { int a[40]; a[0] = n; return g(a) + a[n]; }\n")
    flags = ("-O2", "-shared", "-fPIC", "-nostdlib", "-funwind-tables", "-Wl,--unresolved-symbols=ignore-all")
    return build(source, folder / "arm.so", *flags, compiler="arm-linux-gnueabihf-gcc")


def program(name: str, folder: Path) -> Path:
    if name == "libc":
        return LIBC
    if name == "arm":
        return arm_program(folder)
    if name.endswith(".so"):
        (folder / name).write_bytes(gzip.decompress((FIXTURES / f"{name}.gz").read_bytes()))
        return folder / name
    return ladder(name)


FILES = [
    "ladder",
    "ladder_throw",
    "ladder_drap",
    "ladder_plt",
    "ladder_debug_frame",
    "libc",
    "v2-aarch64-code.so",
    "arm",
]


@pytest.mark.parametrize("name", FILES)
def test_rows_are_those_of_the_file_but_for_what_is_counted(name: str, tmp_path: Path) -> None:
    path = program(name, tmp_path)
    writer, data, done = written(path)
    arch = writer.arch
    file, diagnostics = read_back(data)
    source = StackCfi(lambda: file, writer.file.min_vaddr, arch, diagnostics)
    missing: Counter[str] = Counter()
    same = 0
    for table in ("eh_frame", "debug_frame", "exidx"):
        theirs = READERS[table](writer.file, arch, Diagnostics())
        functions = theirs.functions() if theirs else ()
        for function in islice(functions, 0, None, 5) if name == "libc" else functions:  # libc has nearly 10,000
            for start, end, rule in rows_of(function):
                found = {source.function_at(at) for at in (start, end - 1)}
                for rows in found:
                    if rows is None:
                        signal = "signal frames" if rule.signal else "expressions"
                        missing["outermost frames" if rule.ra == UNDEFINED else signal] += 1
                        continue
                    mine = rows.rules[bisect_right(rows.starts, start) - 1]
                    assert rows.starts[0] <= start < rows.end
                    assert mine == rule or meaning(mine, arch) == meaning(rule, arch), hex(start)
                    same += 1
    assert same > (1 if name == "arm" else 5)
    assert set(missing) <= set(done.left_out)
    assert diagnostics.counts == {}
    if name == "ladder_drap":
        assert done.left_out["expressions"] >= 1


@pytest.mark.parametrize("flags", [("-gdwarf-5",), ("-gdwarf-4", "-ffunction-sections")], ids=str)
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_names_lines_and_inlined_calls_are_those_of_the_dwarf(
    compiler: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", *flags, compiler=compiler)
    assert_agrees(program, "llvm-symbolizer")


def test_names_lines_and_inlined_calls_are_those_of_addr2line(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "program", "-O2", "-g", "-gdwarf-4", compiler="g++")
    assert_agrees(program, "addr2line")


def assert_agrees(program: Path, tool: str) -> None:
    writer, data, _ = written(program)
    file, diagnostics = read_back(data)
    names = SymbolFileNames(file)
    base = writer.file.min_vaddr
    extents = [
        (int(a), int(a + s)) for a, s in zip(file.index.functions.address, file.index.functions.size, strict=True)
    ]
    svmas = [
        base + at for start, end in extents for at in random.Random(3).sample(range(start, end), min(end - start, 60))
    ]
    deepest = 0
    for svma, theirs in zip(svmas, reference(program, svmas, tool), strict=True):
        found = names.find(svma - base)
        assert found is not None
        if theirs[0][2] == 0:
            continue  # line 0 means "no line", which the format cannot express
        mine = [(place.file, place.line) for place in found.places]
        assert mine == [(file, line) for _, file, line in theirs], hex(svma)
        deepest = max(deepest, len(mine))
        if tool != "llvm-symbolizer":
            continue  # binutils 2.40 gives some inlined functions the name of the enclosing one
        plain = demangle([name for name, _, _ in theirs])
        for place, (name, _, _) in zip(found.places[:-1], theirs[:-1], strict=True):
            assert place.name == plain[name] or place.name.endswith(f"::{plain[name]}"), hex(svma)
        assert found.name == plain[theirs[-1][0]], hex(svma)
    assert deepest > 3
    assert diagnostics.counts == {}


def test_symbols_without_dwarf_are_public(tmp_path: Path) -> None:
    writer, data, done = written(ladder("ladder"))
    file, _ = read_back(data)
    listed = subprocess.run([need("nm"), str(ladder("ladder"))], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        words = line.split()
        if len(words) == 3 and words[2].startswith("a_"):
            found = file.public_at(int(words[0], 16) - writer.file.min_vaddr)
            assert found is not None
            assert found.name == words[2]
    assert done.records["PUBLIC"] > 100
    assert done.records["FUNC"] == 0


def test_functions_at_one_address_are_written_once_and_marked(tmp_path: Path) -> None:
    """Put two sections at one address, as a linker with identical code folding does."""
    source = tmp_path / "folded.c"
    source.write_text(
        '__attribute__((noinline, section(".one"))) int one(int x) { return x * 3 + 1; }\n'
        '__attribute__((noinline, section(".two"))) int two(int x) { return x * 3 + 1; }\n'
        "int main(int n, char **v) { (void)v; return one(n) + two(n); }\n"
    )
    places = [f"-Wl,--section-start=.{name}=0x500000" for name in ("one", "two")]
    program = build(
        source, tmp_path / "folded", "-O1", "-g", "-no-pie", "-Wl,--no-check-sections", "-Wl,--no-eh-frame-hdr", *places
    )
    writer, data, _ = written(program)
    file, _ = read_back(data)
    found = file.function_at(0x500000 - writer.file.min_vaddr)
    assert found is not None
    assert found.multiple
    assert found.name in ("one", "two")
    assert data.count(b"FUNC ") == 2


def test_command_writes_files_and_stores(tmp_path: Path) -> None:
    program = ladder("ladder")
    plain = warm.run("symbols", str(program))
    assert plain.stdout.encode() == written(program)[1]
    assert "left out: outermost frames: 1" in plain.stderr
    file = tmp_path / "a.sym"
    quiet = warm.run("symbols", str(program), "-q", "-o", str(file))
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert file.read_bytes() == plain.stdout.encode()
    stored = warm.run("symbols", str(program), "--store", str(tmp_path))
    path = Path(stored.stdout.strip())
    assert path.read_bytes() == plain.stdout.encode()
    assert path.relative_to(tmp_path).parts == ("ladder", written(program)[0].id, "ladder.sym")


@pytest.mark.parametrize("content", [None, b"text", b"\x7fELF\2\1\1" + bytes(80)])
def test_command_refuses_a_file_that_is_not_elf_in_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    done = warm.run("symbols", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"pyprof: {path}: ")
    assert "Traceback" not in done.stderr
