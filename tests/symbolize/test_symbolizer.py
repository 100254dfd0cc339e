"""Tests of the symbolizer on live processes: names, lines, unknown code and markers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pyprof.model import loss_reason_texts
from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.marker_frames import cut_mark
from pyprof.model.profile import FrameKind
from pyprof.model.stacks import marker_key, native_key
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.profile_assembly import WAITED_FOR_S
from pyprof.session.worker.deadline import WorkerOutOfTime
from pyprof.session.worker.worker_client import NAMES_S
from pyprof.symbolize.dwarf_source_lines import SourceLines
from pyprof.symbolize.name_cache import FileNames, NameCache
from pyprof.symbolize.symbolizer import Resolved, Symbolizer
from tests.objfile.live import Live, library, running, symbol, where
from tests.support import build, need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAMS = Path(__file__).parent / "programs"


def resolve(live: Live, *pcs: tuple[int, bool], diagnostics: Diagnostics | None = None) -> Resolved:
    """Resolve frames, each given as (pc, exact)."""
    diagnostics = diagnostics or Diagnostics()
    symbolizer = Symbolizer(ImageStore(diagnostics), NameCache(diagnostics), {1: live.space()})
    return symbolizer.resolve([native_key(1, pc, exact, Trust.EH_FRAME) for pc, exact in pcs])


def test_return_address_is_looked_up_before_itself(tmp_path: Path) -> None:
    with running([where(tmp_path)]) as live:
        start = live.at["where_inner"]
        exact, returned, before = resolve(live, (start, True), (start + 1, False), (start, False)).frames
        assert (exact.title, exact.lookup, exact.lines[-1].offset) == ("where_inner", start, 0)
        assert (returned.title, returned.lookup, returned.lines[-1].offset) == ("where_inner", start, 1)
        assert before.title != "where_inner"
        assert exact.trust is Trust.EH_FRAME
        assert exact.kind is FrameKind.NATIVE


def test_frames_carry_lines_and_inlined_functions(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "inlines", "-O2", "-g", compiler="g++")
    with running([program]) as live:
        main, size = live.at["main"], 0
        out = subprocess.run([need("nm"), "-S", str(program)], capture_output=True, text=True, check=True).stdout
        size = next(int(line.split()[1], 16) for line in out.splitlines() if line.endswith(" T main"))
        resolved = resolve(live, *[(main + at, True) for at in range(0, size, 3)])
        assert {frame.title for frame in resolved.frames} == {"main"}
        deepest = max(resolved.frames, key=lambda frame: len(frame.lines))
        assert len(deepest.lines) > 2
        assert deepest.lines[-1].function == "main"
        assert deepest.lines[-1].file == str(PROGRAMS / "inlines.cc")
        inlined = {line.function for frame in resolved.frames for line in frame.lines[:-1]}
        assert any("helper" in name for name in inlined)
        assert any(name.startswith("std::") for name in inlined)
        [module] = resolved.modules
        assert module.has_functions
        assert module.has_lines
        assert module.path == str(program)


def test_stripped_program_of_no_package_shows_module_offset_and_no_hint(tmp_path: Path) -> None:
    program = where(tmp_path)
    rel = symbol(program, "where_inner")
    subprocess.run([need("strip"), str(program)], check=True, timeout=60)
    diagnostics = Diagnostics()
    with running([program]) as live:
        [frame] = resolve(live, (live.at["where_inner"] + 2, True), diagnostics=diagnostics).frames
    assert frame.title == f"where+{rel + 2:#x}"
    assert frame.rel == rel + 2
    assert frame.lines == ()
    [problem] = diagnostics.problems[str(program)]
    assert problem.text == "no symbols: only exported names"
    assert problem.hint == ""


def test_separate_debug_file_gives_names_and_lines(tmp_path: Path) -> None:
    program = where(tmp_path, "where", "-g")
    for command in (
        ["objcopy", "--only-keep-debug", "where", "where.debug"],
        ["objcopy", "--strip-all", "where"],
        ["objcopy", "--add-gnu-debuglink=where.debug", "where"],
    ):
        subprocess.run([need(command[0]), *command[1:]], check=True, timeout=60, cwd=tmp_path)
    diagnostics = Diagnostics()
    with running([program]) as live:
        [frame] = resolve(live, (live.at["where_inner"], True), diagnostics=diagnostics).frames
    assert frame.title == "where_inner"
    assert frame.lines[-1].line > 0
    assert diagnostics.problems == {}


def test_where_lines_use_up_the_time_functions_of_all_files_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object) -> None:
        raise WorkerOutOfTime

    with running([where(tmp_path, "where", "-g", "-Dwhere_inner=_ZN5where5innerEv")]) as live:
        spaces = {1: live.space()}
        vdso = next(module for module in spaces[1].modules if module.path == "[vdso]")
        places = [live.at["where_inner"], *range(vdso.start, vdso.end, 16)]
        keys = [native_key(1, pc, True, Trust.EH_FRAME) for pc in places]
        expected = resolve(live, *[(pc, True) for pc in places])
        monkeypatch.setattr(SourceLines, "find", late)
        images, names = ImageStore(Diagnostics()), NameCache(Diagnostics())
        with pytest.raises(WorkerOutOfTime):
            Symbolizer(images, names, spaces).resolve(keys)
        found = Symbolizer(images, names, spaces, known_only=True).resolve(keys)
    assert [frame.title for frame in found.frames] == [frame.title for frame in expected.frames]
    assert found.frames[0].title == "where::inner()"
    assert WAITED_FOR_S < NAMES_S


def test_without_time_for_names_functions_have_their_starts(tmp_path: Path) -> None:
    asked: list[bool] = []

    def start(image: Image, avma: int, known_only: bool) -> int:
        asked.append(known_only)
        return image.svma(avma) - 4

    with running([where(tmp_path)]) as live:
        spaces, pc = {1: live.space()}, live.at["where_inner"]
        keys = [native_key(1, pc, True, Trust.EH_FRAME)]
        images, names = ImageStore(Diagnostics()), NameCache(Diagnostics())
        image = images.image(spaces[1], pc)
        assert image is not None
        svma = image.svma(pc)
        found = Symbolizer(images, names, spaces, starts=start, known_only=True).resolve(keys)
    assert found.frames[0].title == f"where!{svma - 4:#x}"
    assert asked == [True]


def test_files_that_name_much_for_their_size_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    file = NameCache.file_names

    def noted(names: NameCache, image: Image) -> FileNames:
        read.append(image.module.name)
        return file(names, image)

    monkeypatch.setattr(NameCache, "file_names", noted)
    with running([where(tmp_path)]) as live:
        libc = next(module for module in live.space().modules if module.name.startswith("libc"))
        resolve(live, (libc.start + 0x30000, True), (live.at["where_inner"], True))
    assert read == ["where", libc.name]


def test_vdso_functions_have_names(tmp_path: Path) -> None:
    with running([where(tmp_path)]) as live:
        space = live.space()
        vdso = next(module for module in space.modules if module.path == "[vdso]")
        names = {frame.title for frame in resolve(live, *[(at, True) for at in range(vdso.start, vdso.end, 16)]).frames}
        assert "__vdso_clock_gettime" in names or "clock_gettime" in names


def made_by(program: str, *regions: str) -> AddressSpace:
    """Return the address space of a program with a page of JIT code in each region, from 0x7000 on."""
    file = Mapping(0x1000, 0x2000, "r-xp", 0, "08:01", 7, f"/nonexistent/{program}")
    code = [
        Mapping(0x7000 + 0x2000 * at, 0x8000 + 0x2000 * at, "r-xp", 0, "00:01", region.startswith("/"), region)
        for at, region in enumerate(regions)
    ]
    return AddressSpace(4, 1 << 29, 0, (file, *code), lambda avma, size: b"", "/nonexistent")


def test_code_without_a_file_is_one_function_of_its_program_wherever_it_is_mapped() -> None:
    diagnostics = Diagnostics()
    keys = [native_key(4, 0x7010, True, Trust.FP), native_key(4, 0x9020, True, Trust.FP)]
    symbolizer = Symbolizer(ImageStore(diagnostics), NameCache(diagnostics), {4: made_by("node", "", "")})
    resolved = symbolizer.resolve([*keys, native_key(9, 0x123, True, Trust.SCAN)])
    assert [frame.title for frame in resolved.frames] == ["[JIT code of node]", "[JIT code of node]", "[unknown]+0x123"]
    assert [(frame.pc, frame.rel) for frame in resolved.frames[:2]] == [(0x7010, 0x10), (0x9020, 0x20)]
    assert [frame.lines[0].function for frame in resolved.frames[:2]] == ["[JIT code of node]"] * 2
    assert {module.path for module in resolved.modules} == {"[anon]"}
    assert not any(module.has_functions for module in resolved.modules)
    (problem,) = diagnostics.problems["[anon]"]
    assert problem == loss_reason_texts.problem("code_without_names", command=problem.hint)
    assert problem.hint == "node --perf-basic-prof …"


@pytest.mark.parametrize(
    ("program", "region", "name"),
    [
        ("java", "[anon:code]", "[JIT code of java: code]"),
        ("dotnet", "/memfd:doublemapper", "[JIT code of dotnet: memfd:doublemapper]"),
        ("libfirst.so.1", "", "[JIT code]"),
        ("x", "[vsyscall]", "[vsyscall]"),
        ("x", "/nonexistent/libgone.so", "libgone.so+0x10"),
    ],
)
def test_memory_with_a_name_is_called_by_it(program: str, region: str, name: str) -> None:
    space = made_by(program, region)
    symbolizer = Symbolizer(ImageStore(Diagnostics()), NameCache(Diagnostics()), {4: space})
    [frame] = symbolizer.resolve([native_key(4, 0x7010, True, Trust.FP)]).frames
    assert frame.title == name


@pytest.mark.parametrize("end", [end for end in StackEnd if end is not StackEnd.ROOT], ids=lambda end: end.name)
def test_truncated_stack_ends_in_a_marker_that_says_why(end: StackEnd) -> None:
    diagnostics = Diagnostics()
    [frame] = (
        Symbolizer(ImageStore(diagnostics), NameCache(diagnostics), {}).resolve([marker_key(cut_mark(end, 0))]).frames
    )
    assert frame.kind is FrameKind.MARKER
    assert frame.title.startswith("[in the unwinder]" if end is StackEnd.UNWINDER else "[truncated: ")
    assert frame.module == -1


def test_two_copies_of_a_library_are_two_modules_with_the_same_names(tmp_path: Path) -> None:
    with running([where(tmp_path), library(tmp_path)]) as live:
        resolved = resolve(live, (live.at["library0"], True), (live.at["library1"], True))
        assert [frame.title for frame in resolved.frames] == ["in_library", "in_library"]
        assert [frame.module for frame in resolved.frames] == [0, 1]
        assert len({module.start for module in resolved.modules}) == 2
        assert len({module.build_id for module in resolved.modules}) == 1


def test_no_time_for_lines_keeps_names_and_says_so(tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    program = where(tmp_path, "where", "-g", compiler="clang")
    with running([program]) as live:
        symbolizer = Symbolizer(ImageStore(diagnostics), NameCache(diagnostics), {1: live.space()}, source_budget_s=-1)
        [frame] = symbolizer.resolve([native_key(1, live.at["where_inner"], True, Trust.CONTEXT)]).frames
    assert frame.title == "where_inner"
    assert frame.lines[-1].line == 0
    assert diagnostics.counts["line_lookup_timeout"] == 1


def test_resolving_again_gives_the_same(tmp_path: Path) -> None:
    diagnostics = Diagnostics()
    with running([where(tmp_path, "where", "-g")]) as live:
        symbolizer = Symbolizer(ImageStore(diagnostics), NameCache(diagnostics), {1: live.space()})
        keys = [native_key(1, avma, True, Trust.CONTEXT) for avma in live.at.values()]
        assert symbolizer.resolve(keys) == symbolizer.resolve(keys)
