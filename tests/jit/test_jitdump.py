"""jitdump files: their records, when they were true, and those of real writers."""

from __future__ import annotations

import json
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.model.code import ALWAYS
from pyprof.model.modules import AddressSpace, Mapping
from pyprof.model.walk import Trust
from pyprof.objfile.jitdump import JitdumpReader, Loaded, Moved
from pyprof.session.code_jitdump import JitdumpCode
from pyprof.session.code_source import Look
from tests.jit.test_interpreters import other_python
from tests.live.support.recording import PYPROF
from tests.support import need

PROGRAMS = Path(__file__).parent / "programs"
HEADER = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 1, 0, 0)


def record(kind: int, time: int, body: bytes) -> bytes:
    return struct.pack("<IIQ", kind, 16 + len(body), time) + body


def load(time: int, start: int, size: int, name: str, index: int = 0) -> bytes:
    body = struct.pack("<IIQQQQ", 1, 1, start, start, size, index) + name.encode() + b"\0" + b"\x90" * size
    return record(0, time, body)


def move(time: int, old: int, new: int, size: int) -> bytes:
    return record(1, time, struct.pack("<IIQQQQQ", 1, 1, new, old, new, size, 0))


def lines(time: int, *entries: tuple[int, int, str]) -> bytes:
    body = struct.pack("<QQ", entries[0][0], len(entries))
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


def test_ticks_of_another_clock_are_no_times() -> None:
    header = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 1, 0, 1)
    (found,) = JitdumpReader().read(header + load(123456, 0x1000, 8, "f"))
    assert found.time_ns is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        b"\x7fELF" + bytes(60),
        HEADER[:4] + struct.pack("<I", 9) + HEADER[8:],
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


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    text = bytearray(HEADER + lines(5, (0x1000, 7, "a")) + load(6, 0x1000, 32, "f") + move(7, 0x1000, 0x2000, 32))
    for _ in range(data.draw(st.integers(0, 6))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        JitdumpReader().read(bytes(text))


def looked_at(path: Path, text: bytes) -> JitdumpCode:
    """path: as jitdumps are called."""
    path.write_bytes(text)
    mapping = Mapping(0x100000, 0x101000, "r-xp", 0, "00:01", path.stat().st_ino, str(path))
    space = AddressSpace(1, 1, 0, (mapping,), lambda avma, size: b"", "")
    code = JitdumpCode(frozenset({path.stat().st_uid}), X86_64, Diagnostics())
    code.update(Look(space, X86_64, ALWAYS, 1 << 40, ()))
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
    """-X perf_jit. The writer keeps its last records in a buffer until it ends: so its whole life is recorded."""
    script = tmp_path / "work.py"
    source = (
        (PROGRAMS / "work.py")
        .read_text()
        .replace("while True", "import time\nend = time.time() + 2\nwhile time.time() < end")
    )
    script.write_text(source)
    output, summary = recorded(tmp_path, *other_python(), "-X", "perf_jit", str(script))
    names = [[name for name in stack.split(";") if name.startswith("py::")] for stack in output]
    assert any([name.split(":")[2] for name in found] == ["<module>", "outer", "middle", "leaf"] for found in names)
    assert summary["trust"][Trust.JITDUMP.label] > 10
    assert "[jit] jitdump" in {module["path"] for module in summary["modules"]}
    assert summary["ends"]["root"] > 0.98 * summary["samples"]


def test_functions_of_nodes_jitdump_have_names_and_tables(tmp_path: Path) -> None:
    script = tmp_path / "work.js"
    script.write_text(
        (PROGRAMS / "work.js").read_text().replace("for(;;)", "const t = Date.now(); while (Date.now() - t < 2000)")
    )
    output, summary = recorded(tmp_path, need("node"), "--perf-prof", "--perf-prof-unwinding-info", str(script))
    assert sum("JS:*fib" in stack for stack in output) > 5
    assert summary["trust"][Trust.JITDUMP.label] > summary["samples"]
    assert summary["ends"]["root"] > 0.98 * summary["samples"]


def recorded(folder: Path, *command: str) -> tuple[list[str], dict]:  # type: ignore[type-arg]
    """(stacks, summary) of a command's whole life; it writes its dump into folder."""
    output, summary = folder / "out.collapsed", folder / "out.json"
    options = ["-r", "199", "-f", "collapsed", "-o", str(output), "--summary", str(summary), "-q", "--native", "all"]
    done = subprocess.run(
        [*PYPROF, "record", *options, "--", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )
    for dump in Path("/tmp").glob("jit-*.dump"):
        with suppress(OSError):
            dump.unlink()
    assert done.returncode == 0, done.stderr
    return output.read_text().splitlines(), json.loads(summary.read_text())
