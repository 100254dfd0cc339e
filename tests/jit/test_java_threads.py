"""Tests of the names of Java threads with made memory, and of what follows for the threads of a profile."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest

from pyprof.errors import FormatError
from pyprof.model.profile import ThreadInfo, rename_threads
from pyprof.runtime_code.hotspot import thread_names
from tests.jit.java_threads import BASE, LAYOUTS, NAMES, image, open_names


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_are_those_of_the_thread_objects(layout: str) -> None:
    data, structs = image(LAYOUTS[layout])
    names = open_names(data, structs, LAYOUTS[layout].version).read_names()
    assert names == {tid: name for tid, name in NAMES.items() if name}


def test_object_that_is_no_string_has_no_name() -> None:
    data, structs = image(LAYOUTS["17"])
    other = data.replace(b"java/lang/String", b"java/lang/Strinx")
    assert open_names(other, structs, 17).read_names() == {}


def test_list_of_threads_that_goes_in_a_circle_ends() -> None:
    data, structs = image(LAYOUTS["8"])
    first = struct.unpack_from("<Q", data, structs.statics["Threads", "_thread_list"] - BASE)[0]
    circle = bytearray(data)
    struct.pack_into("<Q", circle, first - BASE + 16, first)
    assert open_names(bytes(circle), structs, 8).read_names() == {41: NAMES[41]}


def test_reading_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_names, "MAX_READ_NS", -1)
    data, structs = image(LAYOUTS["17"])
    assert open_names(data, structs, 17).read_names() == {}


def test_version_that_does_not_describe_its_threads_is_refused() -> None:
    data, structs = image(LAYOUTS["17"])
    del structs.offsets["JavaThread", "_threadObj"]  # type: ignore[attr-defined]
    with pytest.raises(FormatError):
        open_names(data, structs, 17)


def test_random_changes_cost_only_names_of_threads() -> None:
    chance = random.Random(11)
    for layout in LAYOUTS.values():
        whole, structs = image(layout)
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 40)):
                data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
            with suppress(FormatError):
                for name in open_names(bytes(data), structs, layout.version).read_names().values():
                    assert len(name) <= thread_names.MAX_LENGTH


def test_only_the_last_thread_with_a_tid_is_renamed() -> None:
    threads = tuple(ThreadInfo(1, tid, "old", "java", started) for tid, started in ((5, 1), (5, 2), (6, 1), (7, 1)))
    names = rename_threads(threads, {(1, 5): "five", (1, 6): "six", (2, 7): "other process"})
    assert [thread.name for thread in names] == ["old", "five", "six", "old"]
