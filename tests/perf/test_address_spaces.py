"""Tests of the mappings that apply to each sample."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.perf import address_spaces
from pyprof.collectors.perf.address_spaces import MappingHistory, MappingLayout
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import Mapping

NO_PROCESS = 2**22 + 5
"""A pid above the kernel's maximum."""


def code(start: int, end: int, name: str = "a") -> Mapping:
    return Mapping(start, end, "r-xp", start, "8:1", ord(name[0]), f"/{name}")


def history(*mappings: Mapping) -> MappingHistory:
    return MappingHistory(NO_PROCESS, itertools.count(1).__next__, MappingLayout(mappings))


def names(known: MappingHistory, times: list[int], avma: int) -> list[str]:
    ids, address_spaces = known.assign_spaces(np.array(times, np.int64), np.zeros(len(times), np.uint64))
    found = [address_spaces[i].mapping_at(avma) for i in ids.tolist()]
    return [mapping.path if mapping else "" for mapping in found]


def test_sample_sees_what_was_mapped_when_it_was_taken() -> None:
    known = history(code(0x1000, 0x2000, "first"))
    known.add_mapping(20, code(0x1000, 0x2000, "second"))
    known.add_mapping(10, code(0x5000, 0x6000, "other"))
    known.note_exec(30)
    known.add_mapping(31, code(0x1000, 0x2000, "third"))
    assert names(known, [5, 15, 20, 25, 30, 40], 0x1800) == ["/first", "/first", "/second", "/second", "", "/third"]
    assert names(known, [50], 0x1800) == ["/third"]


def test_generations_without_samples_are_not_made() -> None:
    known = history(code(0x1000, 0x2000))
    for at in range(100):
        known.add_mapping(at, code(0x10000 + 0x1000 * at, 0x11000 + 0x1000 * at))
    ids, address_spaces = known.assign_spaces(np.array([-1, 200, 201], np.int64), np.zeros(3, np.uint64))
    assert len(address_spaces) == 2
    assert ids[1] == ids[2] != ids[0]


def test_mapping_the_same_anew_makes_no_generation() -> None:
    known = history(code(0x1000, 0x2000), code(0x2000, 0x3000))
    before, _ = known.assign_spaces(np.array([0], np.int64), np.zeros(1, np.uint64))
    known.add_mapping(1, code(0x1000, 0x2000))
    again, _ = known.assign_spaces(np.array([2], np.int64), np.zeros(1, np.uint64))
    known.add_mapping(3, replace(code(0x1000, 0x2000), offset=0x7000))
    other, _ = known.assign_spaces(np.array([4], np.int64), np.zeros(1, np.uint64))
    assert before[0] == again[0] != other[0]


def test_child_begins_with_what_its_parent_had() -> None:
    parent = history(code(0x1000, 0x2000, "first"))
    parent.add_mapping(10, code(0x1000, 0x2000, "second"))
    parent.add_mapping(30, code(0x1000, 0x2000, "third"))
    child = parent.make_child(NO_PROCESS + 1, 20)
    assert names(child, [20, 40], 0x1000) == ["/second", "/second"]


def test_mappings_that_were_read_count_from_then_on() -> None:
    known = MappingHistory(os.getpid(), itertools.count(1).__next__, MappingLayout((code(0x1000, 0x2000, "gone"),)))
    known.read_maps()
    past, present = names(known, [0, 2**62], 0x1000)
    assert (past, present) == ("/gone", "")


def test_of_a_storm_of_mappings_what_is_found_afterwards_counts() -> None:
    with open("/proc/self/maps", encoding="ascii") as file:
        real = next(line for line in file if "r-xp" in line and "/" in line)
    others = tuple(code(0x10000000 + 0x2000 * at, 0x10001000 + 0x2000 * at, "other") for at in range(20_000))
    known = MappingHistory(os.getpid(), itertools.count(1).__next__, MappingLayout(others))
    taken = 0
    for at in range(20_000):
        if known.takes_mappings():
            taken += 1
            known.add_mapping(at, replace(code(0x1000 * (1 + at % 512), 0x1000 * (2 + at % 512)), inode=7))
    assert 1_000 < taken < 5_000
    assert names(known, [2**62], int(real.split("-")[0], 16)) == [""]
    assert names(known, [2**62], int(real.split("-")[0], 16)) == [real.split()[-1]]


def test_where_records_were_lost_what_is_mapped_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the mappings once, because thousands of them take a tenth of a second."""
    read: list[int] = []
    now_ns = 10**9

    def slowly(pid: int) -> tuple[Mapping, ...]:
        nonlocal now_ns
        read.append(pid)
        now_ns += 10_000_000
        return (code(0x1000, 0x2000, "found"),)

    monkeypatch.setattr(address_spaces, "_maps", slowly)
    monkeypatch.setattr(address_spaces, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    known = history(code(0x1000, 0x2000))
    known.add_mapping(1, code(0x5000, 0x6000))
    names(known, [2], 0x1800)
    known.distrust_mappings()
    assert len(read) == 1
    now_ns += 39_000_000
    known.distrust_mappings()
    assert len(read) == 1
    now_ns += 1_000_000
    known.distrust_mappings()
    assert len(read) == 2
    assert names(known, [2**62], 0x1800) == ["/found"]


def test_thousands_of_libraries_that_come_and_go_in_a_second_are_told_apart() -> None:
    known = history(code(0x1000, 0x2000, "first"))
    for at in range(30_000):
        known.add_mapping(at, replace(code(0x5000, 0x6000, "ab"[at % 2]), inode=1 + at % 2))
    assert names(known, [28_000, 28_001, 29_999], 0x5800) == ["/a", "/b", "/b"]


def test_a_place_where_many_files_are_mapped_one_after_the_other_is_noted_once() -> None:
    known = history(code(0x1000, 0x2000))
    for at in range(1, 50):
        known.add_mapping(at, replace(code(0x5000, 0x6000), inode=1000 + at))
    assert known.image.contested == [(0x5000, 0x6000)]


def test_memory_of_another_file_is_not_read_as_that_of_the_first() -> None:
    with open("/proc/self/maps", encoding="ascii") as file:
        start, end = next(line.split()[0].split("-") for line in file if "r-xp" in line and "/" in line)
    avma = int(start, 16)
    wrong = MappingHistory(
        os.getpid(), itertools.count(1).__next__, MappingLayout((code(avma, int(end, 16), "wrong"),))
    )
    ids, address_spaces = wrong.assign_spaces(np.array([0], np.int64), np.zeros(1, np.uint64))
    assert address_spaces[int(ids[0])].read(avma, 16) == b""


def test_all_that_is_mapped_is_put_together_for_samples_only() -> None:
    """Build the list of mappings at samples only, not at each of the thousands of mappings between them."""
    made: list[int] = []

    class Counting(MappingLayout):
        def _together(self) -> tuple[Mapping, ...]:
            made.append(len(self))
            return super()._together()

    known = MappingHistory(NO_PROCESS, itertools.count(1).__next__, Counting((code(0x1000, 0x2000),)))
    for at in range(1_000):
        known.add_mapping(at, code(0x10000 + 0x1000 * at, 0x11000 + 0x1000 * at))
    assert names(known, [500, 2_000], 0x1800) == ["/a", "/a"]
    assert made == [502, 1001]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from("abc")), max_size=12))
def test_later_mappings_cover_earlier_ones_page_by_page(made: list[tuple[int, int, str]]) -> None:
    layout = MappingLayout(())
    pages: dict[int, tuple[str, int]] = {}
    for start, length, name in made:
        new = code(start * 4096, (start + length) * 4096, name)
        layout.cover_range(new)
        pages |= {page: (new.path, page * 4096) for page in range(start, start + length)}
    found = {}
    for mapping in layout.mappings:
        for page in range(mapping.start // 4096, mapping.end // 4096):
            assert page not in found
            found[page] = (mapping.path, mapping.offset + page * 4096 - mapping.start)
    assert found == pages


def test_a_sample_inside_an_exec_has_the_old_program_and_later_ones_the_new() -> None:
    known = history(code(0x1000, 0x2000, "old"))
    known.note_exec(100)
    known.add_mapping(150, code(0x9000, 0xA000, "new"))
    pcs = np.array([0x1800, 0x1800, 0x1800, 0x9800], np.uint64)
    ids, address_spaces = known.assign_spaces(np.array([90, 120, 160, 200], np.int64), pcs)
    found = [address_spaces[i].mapping_at(pc) for i, pc in zip(ids.tolist(), pcs.tolist(), strict=True)]
    assert [mapping.path for mapping in found if mapping] == ["/old", "/old", "/old", "/new"]
    late, address_spaces = known.assign_spaces(np.array([200_000_000], np.int64), np.array([0x1800], np.uint64))
    assert address_spaces[int(late[0])].mapping_at(0x1800) is None


def test_ended_process_stays_ended_when_its_exec_is_processed_later() -> None:
    """Process the whole life of a process in one read. Otherwise it would never be dropped."""
    known = history(code(0x1000, 0x2000, "first"))
    known.note_exec(10)
    known.add_mapping(11, code(0x1000, 0x2000, "second"))
    known.note_end()
    known.apply_changes()
    assert names(known, [5, 20], 0x1800) == ["/first", "/second"]
    assert not known.image.alive
