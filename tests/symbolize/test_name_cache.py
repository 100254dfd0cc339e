"""Tests of the cache of file contents: shared by processes, bounded in bytes, with a true estimate of its size."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import tracemalloc
import weakref
from pathlib import Path

import pytest

from pyprof.model.stacks import FrameKey, native_key
from pyprof.model.summary import NameCounts
from pyprof.model.unwind_result import Trust
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize import name_cache
from pyprof.symbolize.dwarf_attribute_forms import Deadline
from pyprof.symbolize.name_cache import IDLE_CALLS, FileNames, NameCache, SettledFrameCache, estimate_footprint
from pyprof.symbolize.symbolizer import Resolved, Symbolizer
from tests.objfile.live import Live, running, where
from tests.support import build, need

pytestmark = pytest.mark.system


def _names(live: Live, cache: NameCache) -> list[str]:
    keys = [native_key(1, avma, True, Trust.CONTEXT) for avma in live.at.values()]
    store = ImageStore(Diagnostics())
    return [frame.title for frame in Symbolizer(store, cache, {1: live.space()}).resolve(keys).frames]


def test_second_process_of_a_file_is_named_without_reading_it_again(tmp_path: Path) -> None:
    program, cache = where(tmp_path, "where", "-g"), NameCache(Diagnostics())
    with running([program]) as first:
        names = _names(first, cache)
    before = cache.counts
    assert before.read == len(names)
    with running([program]) as second:
        assert _names(second, cache) == names
    since = cache.counts - before
    assert (since.known, since.read, since.files) == (len(names), 0, 0)


def test_frames_that_are_settled_are_the_same_in_another_profile_with_other_modules(tmp_path: Path) -> None:
    program, cache, settled = where(tmp_path, "where", "-g"), NameCache(Diagnostics()), SettledFrameCache()
    stripped = tmp_path / "stripped"
    shutil.copy(program, stripped)
    subprocess.run([need("strip"), str(stripped)], check=True, timeout=60)
    with running([program]) as live, running([stripped]) as nameless:
        spaces = {1: live.space(), 2: nameless.space()}
        keys = [native_key(1, avma, True, Trust.CONTEXT) for avma in live.at.values()]
        others = [native_key(2, avma, True, Trust.CONTEXT) for avma in nameless.at.values()]
        store = ImageStore(Diagnostics())

        def resolved(keys: list[FrameKey], settled: SettledFrameCache | None) -> Resolved:
            return Symbolizer(store, cache, spaces, settled=settled).resolve(keys)

        assert not settled.settled_among(keys)
        resolved(keys, settled)
        assert not settled.settled_among(keys), "what was just read may be looked up once more"
        for wanted in (keys, [*others, *keys], keys[::2], [*others, *keys[::-1]]):
            before = cache.counts
            assert resolved(wanted, settled) == resolved(wanted, None)
            known = cache.counts - before
            assert known.known + known.read == 2 * len(wanted), "each address that was asked for is counted"
        assert settled.settled_among(keys).keys() == set(keys)
        assert not settled.settled_among(others), "names may come for them"
        settled.begin_window()
        assert settled.settled_among(keys[:1]).keys() == {keys[0]}
        settled.begin_window()
        assert settled.settled_among(keys).keys() == {keys[0]}, "what was not asked for in a whole window is forgotten"


def test_stripped_copy_does_not_hide_the_names_of_the_whole_file(tmp_path: Path) -> None:
    program, cache = where(tmp_path, "where", "-Wl,--build-id=0x1234567890"), NameCache(Diagnostics())
    stripped = tmp_path / "stripped"
    shutil.copy(program, stripped)
    subprocess.run([need("strip"), str(stripped)], check=True, timeout=60)
    with running([stripped]) as live:
        assert "where_inner" not in _names(live, cache)
    with running([program]) as live:
        assert "where_inner" in _names(live, cache)


def test_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """Replace a file without a build ID, which its path alone does not identify."""
    cache = NameCache(Diagnostics())
    for name in ("where_inner", "another_name"):
        program = where(tmp_path, "where", "-Wl,--build-id=none", f"-Dwhere_inner={name}")
        with running([program]) as live:
            assert name in _names(live, cache)
        program.unlink()


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    programs = [where(tmp_path, f"where{n}", "-g", f"-Wl,--build-id=0x12345678{n}{n}") for n in range(3)]
    cache = NameCache(Diagnostics())

    def name(program: Path) -> NameCounts:
        before = cache.counts
        with running([program]) as live:
            _names(live, cache)
        return cache.counts - before

    for program in programs[:2]:
        assert name(program).files
    cache.most_bytes = cache.nbytes + 1000
    assert name(programs[0]).files == 0
    assert name(programs[2]).dropped
    assert cache.nbytes <= cache.most_bytes
    assert name(programs[2]).files == 0
    assert name(programs[1]).files


def test_what_lay_below_the_root_of_an_ended_process_goes(tmp_path: Path) -> None:
    cache = NameCache(Diagnostics())
    cache.packages("/proc/4242/root")
    cache.packages("/")
    cache.retire({"/proc/4242/root"})
    assert len(cache) == 1


def test_estimated_size_is_what_reading_takes(tmp_path: Path) -> None:
    program = build(
        Path(__file__).parent / "programs" / "inlines.cc", tmp_path / "inlines", "-O2", "-g", compiler="g++"
    )
    with running([program]) as live:
        space = live.space()
        image = ImageStore(Diagnostics()).image(space, live.at["main"])
        assert image is not None
        gc.collect()
        tracemalloc.start()
        try:
            names = FileNames(image)
            assert names.lines is not None
            aranges = names.lines._dwarf.aranges
            for start, end in zip(aranges.start.tolist(), aranges.end.tolist(), strict=True):
                for svma in range(start, end, 7):
                    names.lines.find(svma, Deadline(None))
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert taken > 200_000
    assert 0.7 * taken < estimate_footprint(names) < 1.6 * taken


def test_files_are_closed_as_soon_as_nobody_needs_them(tmp_path: Path) -> None:
    """Check that files, each of which has a descriptor, are closed without a garbage collection."""

    def opened() -> int:
        return sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))

    def name() -> int:
        cache, store = NameCache(Diagnostics()), ImageStore(Diagnostics())
        with running([where(tmp_path, "where", "-g")]) as live:
            space = live.space()
            places = [*live.at.values(), *(module.start + 0x1500 for module in space.modules)]
            keys = [native_key(1, avma, True, Trust.CONTEXT) for avma in places]
            Symbolizer(store, cache, {1: space}).resolve(keys)
            return opened()

    name()
    gc.collect()
    gc.disable()
    try:
        before = opened()
        assert name() > before + 1
        assert opened() <= before
    finally:
        gc.enable()


def test_lines_that_nobody_asks_for_go_and_their_answers_stay(tmp_path: Path) -> None:
    cache = NameCache(Diagnostics())
    with running([where(tmp_path, "where", "-g")]) as live:
        names = _names(live, cache)
        image = ImageStore(Diagnostics()).image(live.space(), live.at["main"])
        assert image is not None
        file, whole = cache.file_names(image), cache.nbytes
        lines = weakref.ref(file.lines)
        cache.drop_idle_lines()
        for _ in range(IDLE_CALLS - 1):
            cache.drop_idle_lines()
        assert lines() is file.lines  # a lookup came before the first call
        cache.drop_idle_lines()
        gc.collect()
        assert lines() is None
        cache.trim()
        assert cache.nbytes < whole
        before = cache.counts
        assert _names(live, cache) == names
        since = cache.counts - before
        assert (since.known, since.read, since.files) == (len(names), 0, 0)
        assert file.lines is not None
        file.found[1] = file.found[next(iter(file.found))]
        for _ in range(IDLE_CALLS):
            cache.drop_idle_lines()
        assert "lines" in vars(file)


def test_containers_of_many_elements_are_measured_by_a_sample() -> None:
    tracemalloc.start()
    try:
        rows = [(number, f"name {number}", {number: [number]}) for number in range(1 << 20, (1 << 20) + 20_000)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < estimate_footprint(rows) < 1.3 * taken


def test_images_and_counters_belong_to_others() -> None:
    assert estimate_footprint([Diagnostics(), Image, estimate_footprint]) < 200


def test_what_does_not_grow_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []

    def counted(value: object) -> int:
        measured.append(value)
        return 1000 * len(measured)

    monkeypatch.setattr(name_cache, "estimate_footprint", counted)
    cache = NameCache(Diagnostics())
    for number in range(400):
        packages = cache.packages("/srv")
        packages._known["/srv", f"/usr/lib/{number}"] = None
        cache.trim()
        cache.packages("/srv")
        cache.trim()
    assert 8 < len(measured) < 20
    assert cache.nbytes == 1000 * len(measured)
