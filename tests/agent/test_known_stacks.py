"""Tests of a reader of many segments that skips tables of known stacks: the result equals that of a full read."""

from __future__ import annotations

import gzip
import random
from collections.abc import Container, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.protobuf_encoding import encode_data as field
from pyprof.importers import pprof, pprof_tables
from pyprof.importers.profile_builder import About, Builder
from pyprof.importers.protobuf import group_fields
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.stack_digest import SIZE
from pyprof.model.unwind_result import Trust
from tests.agent.filled import marked
from tests.exporters.support import export

KINDS = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))
EVIDENCE = ExportOptions(evidence=True)


def window(seed: int, stacks: int, functions: int) -> Profile:
    """Return a profile with random stacks. Names repeat, so that many frames differ in one field only."""
    builder, rng = Builder(), random.Random(seed)
    infos = (ModuleInfo(f"/opt/{at % 2}", f"a{at // 2}", 0x1000, 0x9000, 0, True, True) for at in range(3))
    modules = [builder.add_module(info) for info in infos]

    def frame() -> int:
        number = rng.randrange(functions)
        line = Line(f"f{number % 5}", f"_f{number % 3}", 0, (None, "a.c")[number % 2], number % 4)
        module, pc = modules[number % 3], 0x1000 + 8 * (number % 7)
        rel = pc - 0x1000
        return builder.add_frame(Frame(FrameKind.NATIVE, pc, pc, rel, module, (line,), Trust.EH_FRAME, line.function))

    for _ in range(stacks):
        stack = builder.add_stack([frame() for _ in range(rng.randrange(6))])
        builder.add_sample(stack, (1 + rng.randrange(3), 5), ThreadInfo(1, 1 + rng.randrange(3), "t", "p"))
    return builder.build(About("x", KINDS, (), 10**18, 10**9, 5))


def together(files: Sequence[bytes]) -> Profile:
    builder = Builder()
    abouts = [pprof.read_into(builder, each, "x", 0) for each in files]
    return builder.build(abouts[-1])


def content(profile: Profile) -> tuple[object, ...]:
    columns = (profile.parent, profile.frame, profile.stack, profile.thread, profile.time_ns, profile.values)
    tables = (profile.frames, profile.modules, profile.threads, profile.summary)
    return (*tables, *(column.tobytes() for column in columns))


def with_digests(file: bytes, digests: bytes) -> bytes:
    whole, stated = gzip.decompress(file), field(pprof_tables.STACKS, digests_of(file))
    assert whole.count(stated) == 1
    return whole.replace(stated, field(pprof_tables.STACKS, digests))


def digests_of(file: bytes) -> bytes:
    return group_fields(gzip.decompress(file))[0][pprof_tables.STACKS][-1]


class Counted:
    """A counter of the segments whose frame tables the reader read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = pprof._Reader._read_frames

        def frames(reader: pprof._Reader, wanted: Container[int] | None) -> dict[int, int]:
            self.count += 1
            return read(reader, wanted)

        monkeypatch.setattr(pprof._Reader, "_read_frames", frames)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.sampled_from((1, 4, 40))), min_size=1, max_size=6))
def test_segments_with_known_stacks_read_as_if_all_tables_were_read(windows: list[tuple[int, int, int]]) -> None:
    files = [export("pprof", window(*each), EVIDENCE) for each in windows] * 2
    without = [with_digests(file, b"") for file in files]
    assert content(together(files)) == content(together(without))


def test_tables_are_read_only_of_segments_with_new_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    file, other = (export("pprof", profile, EVIDENCE) for profile in (marked(), window(1, 30, 40)))
    found = together([file, file, file])
    assert counted.count == 1
    assert found.total == 3 * marked().total
    third = export("pprof", window(2, 30, 40), EVIDENCE)
    together([other, other, third, other, third])
    assert counted.count == 1 + 2


def test_segment_that_states_digests_of_others_changes_none_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = export("pprof", window(1, 20, 40), EVIDENCE)
    stated = digests_of(honest)
    assert len(stated) > 5 * SIZE
    turned = stated[SIZE:] + stated[:SIZE]
    liar = with_digests(honest, turned)
    counted = Counted(monkeypatch)
    found, wanted = together([liar, honest]), together([with_digests(honest, b"")] * 2)
    assert content(found) == content(wanted)
    assert counted.count == 3 + 1


@pytest.mark.parametrize("stated", [b"", b"x", bytes(SIZE), bytes(10_000)])
def test_digests_that_fit_no_samples_are_passed_over(stated: bytes) -> None:
    file = export("pprof", window(1, 20, 40), EVIDENCE)
    broken = with_digests(file, stated)
    assert content(together([file, broken])) == content(together([with_digests(file, b"")] * 2))


def test_module_has_names_if_a_segment_whose_tables_are_left_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    named = window(1, 20, 40)
    bare = replace(named, modules=tuple(replace(module, has_functions=False) for module in named.modules))
    counted = Counted(monkeypatch)
    found = together([export("pprof", each, EVIDENCE) for each in (bare, named)])
    assert counted.count == 1
    assert [module.has_functions for module in found.modules] == [True] * len(found.modules)
    assert found.modules
