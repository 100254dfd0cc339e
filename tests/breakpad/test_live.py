"""Tests of ladder programs without symbols and unwind tables, recorded with symbol files: stacks are complete.

The tests match stacks against regular expressions over the function names, from root to leaf and joined by ";", as
tests/live does.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import StackEnd, Walk, lookup_pc
from pyprof.objfile.breakpad_symbol_search import SymbolStore
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import CollectOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.tools.breakpad_writer import SymbolWriter
from pyprof.unwind.formats.breakpad_stack_cfi import breakpad_reader
from pyprof.unwind.module_unwind_sources import add_symbol_reader
from pyprof.unwind.unwinder import Unwinder
from tests import warm
from tests.live.support.ladders import folder, ladder, rungs
from tests.live.support.recording import LIFE, dump, record, running
from tests.live.test_ladders import THREAD, strange
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

ONLY = ("--unwind", "breakpad,fp")
TABLES = (".eh_frame", ".eh_frame_hdr", ".debug_frame", ".sframe")
LIBRARIES = ("libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2")


@cache
def store() -> Path:
    """Write symbol files of the ladders and their libraries, and return their folder."""
    path = folder() / "symbols"
    libraries = [Path("/lib/x86_64-linux-gnu") / name for name in LIBRARIES]
    names = ["ladder", "ladder_signal", "ladder_plt", "libladder_plt.so", "ladder_drap", "ladder_throw"]
    for file in [*map(ladder, names), *(path for path in libraries if path.exists())]:
        writer = SymbolWriter(str(file))
        target = path / writer.store_path
        target.parent.mkdir(parents=True)
        with open(target, "wb") as out:
            writer.write(out)
    return path


@pytest.fixture(scope="module", autouse=True)
def _written_before_programs_start() -> None:
    store()


@cache
def bare(name: str) -> Path:
    """Return a ladder without symbols and unwind tables, under its own name."""
    path = folder() / "bare" / name
    path.parent.mkdir(exist_ok=True)
    shutil.copy(ladder(name), path)
    remove = [word for table in TABLES for word in ("--remove-section", table)]
    subprocess.run([need("objcopy"), "--strip-all", *remove, str(path)], check=True, timeout=60)
    listed = subprocess.run([need("readelf"), "-SW", str(path)], capture_output=True, text=True, check=True).stdout
    assert ".symtab" not in listed
    assert ".eh_frame " not in listed
    return path


def symbols() -> tuple[str, ...]:
    return (*ONLY, "--symbols", str(store()))


def test_threads_on_their_ladders_have_one_stack_each(tmp_path: Path) -> None:
    with running(bare("ladder"), "spin", LIFE) as program:
        recording = record(program.pid, tmp_path, *symbols(), seconds=0.5, until=lambda found: len(found.stacks) >= 4)
    assert recording.whole == 1.0
    ladders = [";".join([f"{p}_thread", *rungs(p), f"{p}_top"]) for p in "abcd"]
    assert strange(recording, rf"{THREAD};({'|'.join(ladders)})") == []
    assert len(recording.stacks) == 4
    assert recording.summary["trust"]["breakpad"] >= 31 * recording.samples


def test_without_the_symbol_files_the_same_program_has_no_such_stacks(tmp_path: Path) -> None:
    with running(bare("ladder"), "spin", LIFE) as program:
        recording = record(program.pid, tmp_path, "--unwind", "fp", seconds=0.5)
    assert not any("a_30" in stack for stack in recording.stacks)
    assert not any(len(stack) > 20 for stack in recording.stacks)


def test_dump_has_names_and_lines_of_a_symbol_file(tmp_path: Path) -> None:
    """Use a compressed symbol file of a stripped program, so that all lines come from the symbol file."""
    program = tmp_path / "spin"
    source = Path(__file__).parent.parent / "programs" / "ladder.c"
    command = [need("gcc"), "-O2", "-g", "-fomit-frame-pointer", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=60)
    written = tmp_path / "spin.sym.xz"
    with lzma.open(written, "wb") as out:
        SymbolWriter(str(program)).write(out)
    subprocess.run([need("strip"), str(program)], check=True, timeout=60)
    with running(program, "spin", LIFE) as process:
        record(process.pid, tmp_path, seconds=0.2)  # gives every thread time to reach its function
        found = dump(process.pid, "--symbols", str(written))
    frames = [frame for thread in found["threads"] for frame in thread["frames"]]
    own = [frame for frame in frames if frame["module"].endswith("/spin") and frame["function"] != "_start"]
    assert {"main"} < {frame["function"] for frame in own}
    for frame in own:
        assert Path(frame["file"]).name in ("ladder.c", "ladder.h")
        assert frame["line"] > 0


def test_symbol_file_of_another_build_is_said_in_the_summary(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.sym"
    data = next(store().glob("ladder/*/ladder.sym")).read_text()
    head, _, rest = data.partition("\n")
    words = head.split(" ")
    words[3] = "0" * 33
    wrong.write_text(" ".join(words) + "\n" + rest)
    with running(bare("ladder"), "spin", LIFE) as program:
        recording = record(program.pid, tmp_path, *ONLY, "--symbols", str(wrong), seconds=0.5)
    texts = [problem for module in recording.summary["modules"] for problem in module["problems"]]
    assert any("another build" in str(text) for text in texts)
    assert not any("a_30" in stack for stack in recording.stacks)


def test_unwinding_by_symbol_files_alone_without_any_is_refused(tmp_path: Path) -> None:
    done = warm.run("record", *ONLY, "--", sys.executable, "-c", "print('ran')", cwd=tmp_path)
    assert done.returncode == 2
    assert "--symbols PATH|URL" in done.stderr
    assert "ran" not in done.stdout


def test_place_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "print('ran')")
    done = warm.run("record", "--symbols", str(tmp_path / "none"), "--", *command, cwd=tmp_path)
    assert done.returncode == 2
    assert "no such file" in done.stderr
    assert "ran" not in done.stdout


@dataclass
class Compared:
    """Counts of samples that were unwound twice: with the ELF files' tables and with symbol files alone."""

    samples: int = 0
    same: int = 0
    whole: int = 0
    wrong: list[str] = field(default_factory=list)


def walk_twice(pid: int, samples: int) -> Compared:
    """Unwind at least this many samples twice.

    On a busy machine most runnable threads have no processor when sampled.
    """
    diagnostics = Diagnostics()
    symbols = SymbolStore([str(store())], diagnostics)
    images = ImageStore(diagnostics, symbol_store=symbols)
    tables = Unwinder(images, UnwindOptions(), Diagnostics())
    options = UnwindOptions(sources=("breakpad", "fp"))
    files = Unwinder(images, options, diagnostics, add_symbol_reader(symbols.find_mapped))
    collector = PtraceCollector(pid, CollectOptions(rate_hz=500, idle=True, flush_s=0), Diagnostics())
    found = Compared()
    deadline = time.monotonic() + 30
    try:
        for batch in collector.batches():
            compare(tables.walk(batch), files.walk(batch), batch, images, symbols, found)
            if found.samples >= samples or time.monotonic() > deadline:
                collector.stop()
    finally:
        collector.close()
    assert not [key for key in diagnostics.counts if "symbol" in key or "stack_cfi" in key]
    return found


def compare(
    theirs: Walk, mine: Walk, batch: SampleBatch, images: ImageStore, symbols: SymbolStore, out: Compared
) -> None:
    """Compare both walks of each sample: they may differ only behind a frame for which no row was written."""
    for lane in range(len(theirs)):
        if theirs.end[lane] == StackEnd.RUNNING:
            continue
        out.samples += 1
        a, b = slice(*theirs.start[lane : lane + 2]), slice(*mine.start[lane : lane + 2])
        first, second = theirs.pc[a].tolist(), mine.pc[b].tolist()
        out.whole += bool(mine.end[lane] == StackEnd.ROOT)
        if first == second:
            out.same += 1
            continue
        at = next(
            (i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
        )
        pc = lookup_pc(first[at - 1], bool(theirs.exact[a][at - 1]))
        image = images.image(batch.spaces[int(batch.space[lane])], pc)
        file = symbols.find(image.file) if image else None
        if image and file and file.cfi_at(image.rel(pc)):
            source = breakpad_reader(symbols.find)(image.file, X86_64, Diagnostics())
            if source and source.function_at(image.svma(pc)):
                out.wrong.append(f"{image.module.name}+{image.rel(pc):#x}")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("ladder", "climb"),
        ("ladder_plt", "climb"),
        ("ladder_signal", "spin"),
        ("ladder_drap", "climb"),
        ("ladder_throw", "climb"),
    ],
)
def test_frames_are_those_of_the_tables_wherever_a_row_was_written(name: str, mode: str) -> None:
    """Compare frames outside of trampolines, PLT entries and realigned frames, for which symbol files have no rows."""
    with running(ladder(name), mode, LIFE) as program:
        found = walk_twice(program.pid, 150)
    assert found.wrong == []
    assert found.samples >= 100
    assert found.same >= 0.4 * found.samples
    if name == "ladder":
        assert found.same == found.samples
        assert found.whole >= 0.9 * found.samples  # the others are new threads
