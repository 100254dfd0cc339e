"""Tests of jitdump files: their records, the times at which they apply, and files of real writers."""

from __future__ import annotations

import json
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import X86_64
from pyprof.model.jit_code_map import ALWAYS
from pyprof.model.unwind_result import Trust
from pyprof.objfile.jitdump import JitdumpReader, Loaded, Moved
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.perf_map_and_jitdump import JitdumpCode
from tests import warm
from tests.exporters.pprof_reader import read
from tests.jit.test_interpreters import other_python
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAMS = Path(__file__).parent / "programs"
HEADER = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 1, 0, 0)


def record(kind: int, time: int, body: bytes) -> bytes:
    return struct.pack("<IIQ", kind, 16 + len(body), time) + body


def load(time: int, start: int, size: int, name: str, index: int = 0) -> bytes:
    body = struct.pack("<IIQQQQ", 1, 1, start, start, size, index) + name.encode() + b"\0" + b"\x90" * size
    return record(0, time, body)


def move(time: int, old: int, new: int, size: int) -> bytes:
    return record(1, time, struct.pack("<IIQQQQQ", 1, 1, new, old, new, size, 0))


def lines(time: int, *entries: tuple[int, int, str], of: int = 0) -> bytes:
    """Return a JIT_CODE_DEBUG_INFO record.

    Args:
        time: Timestamp of the record.
        entries: (address, line, file) of each entry.
        of: Address of the code, or 0 for that of the first entry.
    """
    body = struct.pack("<QQ", of or entries[0][0], len(entries))
    for address, line, file in entries:
        body += struct.pack("<QII", address, line, 0) + (file.encode() if file else b"\xff") + b"\0"
    return record(2, time, body)


def test_records_in_any_pieces_are_the_same() -> None:
    text = (
        HEADER + lines(5, (0x1000, 7, "a.js"), (0x1004, 8, "")) + load(6, 0x1000, 32, "f") + move(7, 0x1000, 0x2000, 32)
    )
    whole = JitdumpReader().read(text)
    assert whole == [
        Loaded(6, 0x1000, 32, 0, "f", ((0x1000, "a.js", 7), (0x1004, "a.js", 8))),
        Moved(7, 0x1000, 0x2000, 32, 0),
    ]
    reader = JitdumpReader()
    pieces = [found for at in range(0, len(text), 7) for found in reader.read(text[at : at + 7])]
    assert pieces == whole


def loaded(text: bytes, machine: int = 62) -> list[Loaded]:
    header = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, machine, 0, 1, 0, 0)
    return [found for found in JitdumpReader().read(header + text) if isinstance(found, Loaded)]


def test_lines_belong_to_the_code_that_they_name() -> None:
    """Read a batch as LLVM writes it, lines of all functions first. Other writers omit functions without lines."""
    text = lines(1, (0x1000, 1, "a.c")) + lines(2, (0x2000, 2, "b.c")) + lines(3, (0x9000, 9, "never.c"))
    text += load(4, 0x3000, 16, "none") + load(5, 0x2000, 16, "b")
    text += load(6, 0x1000, 16, "a") + load(7, 0x1000, 16, "new")
    assert [(found.name, found.lines) for found in loaded(text)] == [
        ("none", ()),
        ("b", ((0x2000, "b.c", 2),)),
        ("a", ((0x1000, "a.c", 1),)),
        ("new", ()),
    ]


@pytest.mark.parametrize(("machine", "header"), [(62, 0x40), (183, 0x40), (3, 0x34)])
def test_lines_that_count_the_elf_header_stand_at_their_code(machine: int, header: int) -> None:
    """Correct addresses that include the size of an ELF header, as V8, Julia and LLVM write them.

    Without the correction all lines of a function shorter than the header would lie outside of it.
    """
    text = lines(1, (0x1000 + header, 1, "a"), (0x100C + header, 2, "a"), (0x1010 + header, 3, "a"), of=0x1000)
    (found,) = loaded(text + load(2, 0x1000, 16, "f"), machine)
    assert found.lines == ((0x1000, "a", 1), (0x100C, "a", 2))


def test_lines_of_a_writer_that_counts_no_header_stay_where_they_are() -> None:
    """Detect from one line below the header's size that the writer includes no header."""
    text = lines(1, (0x1000, 1, "a")) + load(2, 0x1000, 256, "f")
    text += lines(3, (0x2050, 7, "a"), of=0x2000) + load(4, 0x2000, 256, "late")
    assert [found.lines for found in loaded(text)] == [((0x1000, "a", 1),), ((0x2050, "a", 7),)]


def test_lines_of_code_that_never_comes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyprof.objfile.jitdump.MAX_WAITING", 10)
    text = b"".join(lines(1, *[(at + n, n + 1, "") for n in range(4)]) for at in range(0x1000, 0x4000, 0x1000))
    text += b"".join(load(2, at, 16, "f") for at in range(0x1000, 0x4000, 0x1000))
    assert [len(found.lines) for found in loaded(text)] == [0, 4, 4]


def test_file_names_that_are_no_text_cost_nothing_but_themselves() -> None:
    """Read invalid file names as node 20 writes them: bytes of another object with the length of the name."""
    body, junk = struct.pack("<QQ", 0x1000, 4), b"\xbf\xe4H1\0\0\0\0#\xcd-\x09\xe8F\x9aWs"
    for address, line, file in ((0x1040, 1, junk), (0x1044, 2, b"\xff"), (0x1048, 3, junk[::-1]), (0x104C, 4, b"a.js")):
        body += struct.pack("<QII", address, line, 0) + file + b"\0"
    (found,) = loaded(record(2, 1, body) + load(2, 0x1000, 16, "f"))
    assert found.lines == ((0x1000, "", 1), (0x1004, "", 2), (0x1008, "", 3), (0x100C, "a.js", 4))


CIE = bytes.fromhex("14000000 00000000 01 7a5200 01 78 10 01 1b 0c0708 9001 0000".replace(" ", ""))


def unwinding(start: int, stands: int, header: bytes, *, header_first: bool) -> bytes:
    """Return an unwinding info record for code of 16 bytes with a 4-byte prologue, after which the CFA is rsp + 32.

    Args:
        start: Address of the code.
        stands: Address of .eh_frame.
        header: Contents of .eh_frame_hdr.
        header_first: Whether the header precedes the table.
    """
    fde = struct.pack("<IIiI", 0x14, len(CIE) + 4, start - (stands + len(CIE) + 8), 16) + b"\0\x44\x0e\x20\0\0\0\0"
    tables = [CIE + fde + bytes(4), header]
    body = b"".join(reversed(tables) if header_first else tables)
    return record(4, 1, struct.pack("<QQQ", len(body), len(header), 0) + body)


HDR = bytes.fromhex("011b033b ccffffff 01000000 c0ffffff e8ffffff".replace(" ", ""))


@pytest.mark.parametrize("size", [16, 13])
@pytest.mark.parametrize("header_first", [False, True])
def test_tables_are_found_on_either_side_of_their_header(header_first: bool, size: int, tmp_path: Path) -> None:
    """Find the tables behind the code at the next multiple of 8."""
    text = unwinding(0x1000, 0x1010, HDR, header_first=header_first) + load(2, 0x1000, size, "f")
    assert rules(looked_at(tmp_path / "jit-1.dump", HEADER + text), 0x1000) == [8, 32]


def test_tables_with_an_address_of_their_own_hold_for_all_code_that_follows(tmp_path: Path) -> None:
    """Apply one .eh_frame of a whole object at its own address to all following functions, as LLVM writes it."""
    header = struct.pack("<BBBBQ", 1, 0x0C, 0xFF, 0xFF, 0x9000)
    text = unwinding(0x2000, 0x9000, header, header_first=True) + load(2, 0x1000, 16, "g") + load(3, 0x2000, 16, "f")
    code = looked_at(tmp_path / "jit-1.dump", HEADER + text)
    assert rules(code, 0x2000) == [8, 32]
    assert rules(code, 0x1000) == []


def rules(code: JitdumpCode, start: int) -> list[int]:
    """Return the distance of the CFA from sp for each row of the function that begins at this address."""
    span = code.spans.find(start, 1 << 39)
    assert span is not None
    found = code.rows(span, start, True, lambda pc, exact: None)
    assert found is None or found[0].start == start
    return [rule.cfa_off for rule in found[0].rules] if found else []


def test_ticks_of_another_clock_are_no_times() -> None:
    header = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 1, 0, 1)
    (found,) = JitdumpReader().read(header + load(123456, 0x1000, 8, "f"))
    assert found.time_ns is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        b"\x7fELF" + bytes(60),
        HEADER[:4] + struct.pack("<I", 9) + HEADER[8:],
        HEADER[:8] + struct.pack("<I", 2**32 - 16) + HEADER[12:],
        HEADER + struct.pack("<IIQ", 0, 8, 0),
        HEADER + struct.pack("<IIQ", 0, 0xFFFFFFFF, 0),
        HEADER + record(0, 0, b"short"),
        HEADER + record(4, 0, struct.pack("<QQQ", 1 << 60, 0, 0)),
        HEADER + record(2, 0, struct.pack("<QQ", 0, 1 << 60)),
    ],
)
def test_broken_files_are_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        JitdumpReader().read(text)


def test_code_beyond_all_addresses_is_none() -> None:
    at, body = 2**64 - 8, struct.pack("<IIQQQQ", 1, 1, 2**64 - 8, 2**64 - 8, 16, 0) + b"f\0"
    assert JitdumpReader().read(HEADER + record(0, 1, body) + move(2, 0x1000, at, 8)) == []


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    text = bytearray(HEADER + lines(5, (0x1000, 7, "a")) + load(6, 0x1000, 32, "f") + move(7, 0x1000, 0x2000, 32))
    for _ in range(data.draw(st.integers(0, 6))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        JitdumpReader().read(bytes(text))


def looked_at(path: Path, text: bytes) -> JitdumpCode:
    """Read a jitdump that is mapped by a process. The path has the name pattern of jitdumps."""
    path.write_bytes(text)
    mapping = Mapping(0x100000, 0x101000, "r-xp", 0, "00:01", path.stat().st_ino, str(path))
    space = AddressSpace(1, 1, 0, (mapping,), lambda avma, size: b"", "")
    code = JitdumpCode(frozenset({path.stat().st_uid}), X86_64, Diagnostics())
    code.update(CodeScan(space, X86_64, ALWAYS, 1 << 40, ()))
    return code


def test_address_that_is_used_again_has_the_name_of_its_time(tmp_path: Path) -> None:
    code = looked_at(
        tmp_path / "jit-1.dump",
        HEADER + load(100, 0x1000, 64, "old") + load(200, 0x1010, 16, "new") + move(300, 0x1010, 0x1800, 16),
    )

    def name(pc: int, time: int) -> str | None:
        span = code.spans.find(pc, time)
        return code.name(span).name if span else None

    assert [name(0x1018, time) for time in (50, 199, 200, 299, 300)] == ["old", "old", "new", "new", None]
    assert [name(0x1808, time) for time in (299, 300, 999)] == [None, "new", "new"]


def test_functions_of_cpythons_jitdump_are_unwound_by_its_tables(tmp_path: Path) -> None:
    """Record the whole life of a CPython with -X perf_jit, which buffers its last records until it ends."""
    script = tmp_path / "work.py"
    source = (PROGRAMS / "work.py").read_text().replace("while True", "import time\nwhile time.process_time() < 1")
    script.write_text(source)
    output, summary = recorded(tmp_path, *other_python(), "-X", "perf_jit", str(script))
    names = [[name for name in stack.split(";") if name.startswith("py::")] for stack in output]
    assert any([name.split(":")[2] for name in found] == ["<module>", "outer", "middle", "leaf"] for found in names)
    assert summary["trust"][Trust.JITDUMP.label] > 10
    assert "[jit] jitdump" in {module["path"] for module in summary["modules"]}
    assert summary["ends"]["root"] > 0.98 * summary["samples"]


def test_functions_of_nodes_jitdump_have_names_and_tables(tmp_path: Path) -> None:
    script = tmp_path / "work.js"
    script.write_text((PROGRAMS / "work.js").read_text().replace("for(;;)", "while (process.cpuUsage().user < 1e6)"))
    output, summary = recorded(tmp_path, need("node"), "--perf-prof", "--perf-prof-unwinding-info", str(script))
    assert sum("fib" in stack.split(";") for stack in output) > 5  # V8's own name, not that of the jitdump
    assert summary["trust"][Trust.V8.label] > 20
    assert summary["ends"]["root"] > 0.98 * summary["samples"]


def test_lines_of_nodes_functions_are_those_that_run(tmp_path: Path) -> None:
    """Check that nearly all samples are in the loop's body, which is two thirds as long as an ELF header."""
    script = tmp_path / "lines.js"
    script.write_text(LOOP)
    recorded(tmp_path, need("node"), "--perf-prof", str(script), file="out.pb.gz")
    profile = read((tmp_path / "out.pb.gz").read_bytes())
    here: Counter[int] = Counter()
    for locations, (count, *_), _ in profile.samples:
        for function, line in profile.locations[locations[0] - 1][2][-1:]:
            if "spin" in profile.functions[function - 1][0]:
                here[line] += count
    assert sum(here.values()) > 20
    assert sum(here[line] for line in (4, 5, 6, 7)) > 0.9 * sum(here.values()), here


LOOP = """\
function spin(n) {
  let a = 1, b = 2, c = 3, slow = 1.5;
  for (let turn = 0; turn < n; turn++) {
    a = (a ^ turn) + 7 | 0;
    b = (b ^ a) + 11 | 0;
    c = (c ^ b) + 13 | 0;
    slow = Math.sqrt(Math.sqrt(slow) / 1.0001 + 1.5);
  }
  return slow + a + b + c;
}
let sum = 0;
while (process.cpuUsage().user < 1e6) { sum += spin(1000000); }
"""


def recorded(folder: Path, *command: str, file: str = "out.collapsed") -> tuple[list[str], dict]:  # type: ignore[type-arg]
    """Return (stacks, summary) of a command's whole life, which writes its jitdump into the folder or below /tmp."""
    output, summary = folder / file, folder / "out.json"
    options = ["-r", "199", "-o", str(output), "--summary", str(summary), "-q", "--native", "all"]
    wrapped = ("sh", "-c", 'echo $$ >pid; exec "$@"', "sh", *command)
    done = warm.run("record", *options, "--", *wrapped, timeout=120, cwd=folder)
    Path(f"/tmp/jit-{(folder / 'pid').read_text().strip()}.dump").unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    return output.read_text(errors="replace").splitlines(), json.loads(summary.read_text())
