"""Tests of `pyprof report --lines` and `--annotate`: costs by source line, with source only of permitted files."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyprof.cli import main
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.session.worker import worker_process
from pyprof.symbolize.source_files import MAX_BYTES, SourceFiles
from tests.cli.support import one_sentence, pyprof
from tests.exporters.profiles import PERIOD_NS, Builder, code, golden
from tests.recording.support import stored
from tests.support import build, need

pytestmark = [pytest.mark.live, pytest.mark.system]

SOURCE = """\
static inline unsigned mix(unsigned x) {
    x ^= x << 13;
    return x;
}
__attribute__((noinline)) unsigned heavy(unsigned n) {
    unsigned s = 1;
    for (unsigned i = 0; i < n; i++)
        s += mix(s + i);
    return s;
}
int main(int argc, char **argv) {
    return heavy(argc);
}
"""


def lines(*arguments: str | Path) -> list[str]:
    done = pyprof("report", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def shares(rows: list[str], text: str) -> list[str]:
    """Return the percentages in the row that ends with this text."""
    (row,) = (row for row in rows if row.endswith(text))
    return row.removesuffix(text).replace(" %", "%").split()


def address(line: str) -> int:
    """Return the address in a line of objdump's output."""
    return int(line.split(":")[0], 16)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "src").mkdir()
    (folder / "src/heavy.c").write_text(SOURCE)
    return build(folder / "src/heavy.c", folder / "heavy", "-O1", "-g", "-Wl,--build-id")


@pytest.fixture(scope="module")
def recording(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile with three samples in mix, inlined into heavy, and one in heavy itself.

    The program counters point to the last byte of an instruction.
    """
    file = open_object_file(str(program))
    known = subprocess.run([need("nm"), program], capture_output=True, text=True, check=True).stdout.split("\n")
    start = {line.split()[-1]: int(line.split()[0], 16) for line in known if len(line.split()) == 3}
    listed = [need("objdump"), "-d", "--no-show-raw-insn", str(program)]
    listing = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    shift = next(address(line) for line in listing if "shl " in line and "$0xd" in line)
    module = ModuleInfo("/build/heavy", file.build_id, 0x5000_0000, 0x5001_0000, 0, has_functions=True, has_lines=True)

    def frame(function: str, svma: int, *inside: Line, line: int) -> Frame:
        rel = svma - file.min_vaddr
        own = Line(function, function, svma - start[function], "/build/src/heavy.c", line)
        trust = Trust.CONTEXT if inside or function == "heavy" else Trust.EH_FRAME
        lookup = 0x5000_0000 + rel - (trust != Trust.CONTEXT)
        return Frame(FrameKind.NATIVE, 0x5000_0000 + rel, lookup, rel, 0, (*inside, own), trust, function)

    called = next(at for at, line in enumerate(listing) if "<heavy>" in line and "call" in line)
    main = frame("main", address(listing[called + 1]), line=12)  # the return address
    mixed = frame("heavy", shift, Line("mix", "mix", 0, "/build/src/heavy.c", 2), line=8)
    looping = frame("heavy", start["heavy"] + 1, line=7)
    builder = Builder()
    builder.sample(builder.node([main, mixed]), cpu_ns=3 * PERIOD_NS)
    builder.sample(builder.node([main, looping]))
    return stored(builder.build((module,)), tmp_path_factory.mktemp("recording"))


def test_lines_have_what_they_cost_in_themselves_and_with_what_they_call(recording: Path) -> None:
    rows = [row.split()[:-1] for row in lines(recording, "--lines")[3:]]
    assert [(" ".join(row[:4]), row[-1]) for row in rows] == [
        ("75.0 % 75.0 %", "/build/src/heavy.c:2"),
        ("25.0 % 25.0 %", "/build/src/heavy.c:7"),
        ("0 % 100 %", "/build/src/heavy.c:12"),
        ("0 % 75.0 %", "/build/src/heavy.c:8"),
    ]


def test_source_of_a_function_has_shares_beside_its_lines(recording: Path, program: Path) -> None:
    rows = lines(recording, "--annotate", "heavy", "--source", program.parent)
    assert rows[0].endswith("100 % of all")
    assert f"/build/src/heavy.c, which is {program.parent}/src/heavy.c here" in rows
    assert shares(rows, "│         s += mix(s + i);") == ["75.0%", "8"]
    assert shares(rows, "│     for (unsigned i = 0; i < n; i++)") == ["25.0%", "25.0%", "7"]
    assert not any("x << 13" in row for row in rows)
    assert shares(lines(recording, "--annotate", "^mi", "--source", program.parent), "│     x ^= x << 13;")[:2] == [
        "75.0%",
        "75.0%",
    ]


def test_page_has_the_lines_that_cost_something_only_where_they_are_asked_for(
    recording: Path, program: Path, tmp_path: Path
) -> None:
    page = tmp_path / "a.html"
    lines(recording, "-o", page)
    assert "source" not in contents(page)
    lines(recording, "-o", page, "--source", program.parent)
    ((path, changed, parts),) = contents(page)["source"]["files"]
    assert (path, changed, parts) == ("/build/src/heavy.c", 1, [[1, [row.rstrip() for row in SOURCE.splitlines()]]])
    refused = pyprof("report", str(recording), "-f", "collapsed", "--source", str(program.parent))
    assert "no source lines in collapsed files" in one_sentence(refused)


def contents(page: Path) -> dict[str, Any]:
    """Return the data that an HTML page embeds."""
    (text,) = re.findall(r'id="profile">([^<]*)<', page.read_text())
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text)))
    return found


def test_instructions_stand_at_their_addresses_and_calls_have_what_they_call(recording: Path, program: Path) -> None:
    rows = lines(recording, "--annotate", "heavy", "--asm", "--symbols", program)
    (row,) = (row for row in rows if "│ shl    $0xd," in row)
    assert row.replace(" %", "%").split()[:2] == ["75.0%", "75.0%"]
    assert not any("call" in row for row in rows)
    (called,) = (row for row in lines(recording, "--annotate", "main", "--asm", "--symbols", program) if "call " in row)
    assert called.replace(" %", "%").split()[0] == "100%"


def test_process_that_prints_reads_no_object_file(
    recording: Path, program: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    arguments = ("--annotate", "heavy", "--asm", "--symbols", str(program))
    expected = lines(recording, *arguments)
    monkeypatch.setattr(
        worker_process, "forked", worker_process.spawned
    )  # a forked worker would inherit the patches below
    monkeypatch.setattr(ElfFile, "__init__", lambda *_: pytest.fail("it parses an object file"))
    assert main.run(["report", str(recording), *arguments]) == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == expected


def test_without_the_object_file_it_says_what_helps(recording: Path) -> None:
    rows = lines(recording, "--annotate", "heavy", "--asm")
    assert any("no file here has its build-id" in row and "--symbols" in row for row in rows)


def test_source_that_is_not_here_leaves_lines_and_says_what_helps(recording: Path) -> None:
    rows = lines(recording, "--annotate", "heavy")
    assert any("--source DIR" in row for row in rows)
    assert any(row.replace(" %", "%").split() == ["25.0%", "25.0%", "7"] for row in rows)


def test_source_that_changed_since_is_said_to_have(recording: Path, program: Path) -> None:
    assert any(
        "changed after the recording" in row
        for row in lines(recording, "--annotate", "heavy", "--source", program.parent)
    )


@pytest.mark.parametrize(
    "arguments", [["--annotate", "no_such"], ["--annotate", "("], ["--asm"], ["--lines", "-o", "a.html"]]
)
def test_what_cannot_be_shown_is_one_sentence(arguments: list[str], recording: Path) -> None:
    done = pyprof("report", str(recording), *arguments)
    assert done.returncode == 2
    one_sentence(done)


def test_folder_that_is_not_there_is_refused(recording: Path) -> None:
    assert "no such folder" in one_sentence(pyprof("report", str(recording), "--annotate", "heavy", "--source", "/no"))


def test_text_of_a_source_cannot_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("one\n\x1b[2Jtwo\u202e\n")
    builder = Builder()
    builder.sample(builder.node([code("f", file="/x/a.c", line=2)]))
    rows = lines(stored(builder.build(), tmp_path), "--annotate", "f", "--source", tmp_path)
    assert any(row.endswith("│ \\x1b[2Jtwo\\u202e") for row in rows)


class TestSourceFiles:
    def test_longest_end_of_a_path_wins(self, tmp_path: Path) -> None:
        for place in ("a.c", "src/a.c", "app/src/a.c"):
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(place)
        files = SourceFiles([str(tmp_path)])
        for named, found in (
            ("/build/app/src/a.c", "app/src/a.c"),
            ("/other/src/a.c", "src/a.c"),
            ("a.c", "a.c"),
            ("/build/../src/a.c", "src/a.c"),
            ("../../app/src/a.c", "app/src/a.c"),
        ):
            text = files.source_text(named, 1)
            assert text is not None
            assert text.lines == (found,)

    def test_file_that_is_too_short_is_another_one(self, tmp_path: Path) -> None:
        (tmp_path / "a.c").write_text("1\n2\n")
        files = SourceFiles([str(tmp_path)])
        assert files.source_text("/x/a.c", 2)
        assert files.source_text("/x/a.c", 3) is None

    def test_private_file_is_shown_only_where_the_user_allows(self, tmp_path: Path) -> None:
        os.chmod(tmp_path, 0o755)
        for parent in tmp_path.parents[:3]:
            if str(parent) != "/tmp":
                os.chmod(parent, 0o755)
        secret, public = tmp_path / "secret", tmp_path / "public"
        for path, mode in ((secret, 0o600), (public, 0o644)):
            path.write_text("text")
            path.chmod(mode)
        assert SourceFiles().source_text(str(public), 1) is not None
        assert SourceFiles().source_text(str(secret), 1) is None
        assert SourceFiles([str(tmp_path)]).source_text(str(secret), 1) is not None

    def test_link_does_not_lead_out_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("text")
        (tmp_path / "in").mkdir()
        (tmp_path / "in/a.c").symlink_to("../outside")
        (tmp_path / "in/b.c").symlink_to(tmp_path / "outside")
        files = SourceFiles([str(tmp_path / "in")])
        assert files.source_text("a.c", 1) is None
        assert files.source_text("b.c", 1) is None

    @pytest.mark.parametrize(
        "name", ["/proc/self/environ", "/dev/zero", "/etc", "", "/", "..", "a\0b", "/x/..", "a" * 5000]
    )
    def test_file_that_is_no_source_file_has_no_lines(self, name: str, tmp_path: Path) -> None:
        assert SourceFiles([str(tmp_path)]).source_text(name, 1) is None
        assert SourceFiles(["/"]).source_text(name, 1) is None

    def test_pipe_binary_and_huge_files_are_none(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.c")
        (tmp_path / "binary.c").write_bytes(b"\x7fELF\0\n\n")
        with open(tmp_path / "huge.c", "wb") as file:
            file.write(b"x\n")
            file.truncate(MAX_BYTES + 1)
        files = SourceFiles([str(tmp_path)])
        assert [files.source_text(f"{name}.c", 1) for name in ("pipe", "binary", "huge")] == [None] * 3


def test_sums_of_lines_are_those_of_functions() -> None:
    from pyprof.model.analysis.function_costs import costs
    from pyprof.model.analysis.line_costs import line_costs

    profile = golden()
    own: dict[object, int] = {}
    for cost in line_costs(replace(profile)):
        own[cost.place.function] = own.get(cost.place.function, 0) + cost.own
    assert {function: value for function, value in own.items() if value} == {
        cost.function: cost.own for cost in costs(profile).functions if cost.own
    }
