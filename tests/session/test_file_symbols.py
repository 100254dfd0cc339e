"""Tests of interpreter symbols read from files by another thread or process: results equal those of a local read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.linux import procfs
from pyprof.interpreters.cpython.runtime_location import WANTED, list_candidates
from pyprof.interpreters.detection_symbols import FoundSymbols, KnownSymbols, Symbol, find_anchor, read_symbols
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace, Module
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.session.worker import interpreter_symbols
from pyprof.session.worker.interpreter_symbols import LATE, InterpreterSymbolClient, answer_questions, packed, unpacked
from pyprof.session.worker.message_channel import Channel
from pyprof.session.worker.response_codec import ResponseRefused

FOUND = [None, FoundSymbols(), FoundSymbols((Symbol(b"_PyRuntime", (1 << 64) - 1, 7),), (4096, 8))]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture(scope="module")
def here() -> AddressSpace:
    return procfs.read_address_space(os.getpid(), 1, 0)


def test_answer_is_what_reading_the_files_here_gives(ends: tuple[Channel, Channel], here: AddressSpace) -> None:
    ours, theirs = ends
    answer_questions(theirs, lambda: None)
    modules = [module for module in list_candidates(here) if module.mappings]
    found = InterpreterSymbolClient(ours, lambda space: None, Diagnostics())(here, modules, WANTED)
    assert found == read_symbols(ImageStore(Diagnostics()), here, modules, WANTED)
    assert found[-1]
    assert {symbol.name for symbol in (found[-1] or FoundSymbols()).symbols} >= {b"_PyRuntime"}


def test_file_is_asked_about_once_and_is_found_again_elsewhere(here: AddressSpace) -> None:
    module = next(module for module in here.modules if module.has_file and find_anchor(module))
    found = FoundSymbols((Symbol(b"_PyRuntime", module.start + 16, 7),), (module.start + 32, 8))
    asked: list[AddressSpace] = []

    def read(space: AddressSpace, modules: object, wanted: object) -> list[FoundSymbols | None]:
        asked.append(space)
        return [found]

    known, by = KnownSymbols(read), 1 << 30
    elsewhere = replace(
        module, mappings=tuple(replace(each, start=each.start + by, end=each.end + by) for each in module.mappings)
    )
    moved = FoundSymbols((Symbol(b"_PyRuntime", module.start + 16 + by, 7),), (module.start + 32 + by, 8))
    assert known.find_first(here, [module], WANTED) == (module, found)
    assert known.find_first(here, [elsewhere], WANTED) == (elsewhere, moved)
    assert asked == [here]


def test_file_that_is_mapped_everywhere_is_asked_about_at_a_few_places(here: AddressSpace) -> None:
    module = next(module for module in here.modules if module.has_file and find_anchor(module))
    copies = [
        replace(
            module, mappings=tuple(replace(each, start=each.start + at, end=each.end + at) for each in module.mappings)
        )
        for at in range(0, 1 << 34, 1 << 20)
    ]
    asked: list[Module] = []

    def read(space: AddressSpace, modules: Sequence[Module], wanted: object) -> list[FoundSymbols | None]:
        asked.extend(modules)
        return [None] * len(modules)

    assert KnownSymbols(read).find_first(here, [*copies, here.modules[-1]], WANTED) is None
    assert 1 < len(asked) < 10
    assert asked[-1] == here.modules[-1]


def test_search_that_takes_too_long_finds_nothing_and_its_answer_is_no_other_ones(
    ends: tuple[Channel, Channel], here: AddressSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    monkeypatch.setattr(interpreter_symbols, "PATIENCE_S", 0.01)
    diagnostics = Diagnostics()
    ask = InterpreterSymbolClient(ours, lambda space: None, diagnostics)
    modules = here.modules[:3]
    assert ask(here, modules, WANTED) == [FoundSymbols()] * 3
    assert diagnostics.counts[LATE] == 1
    theirs.send(packed(1, [FoundSymbols((Symbol(b"late", 1, 1),))]))
    theirs.send(packed(2, FOUND))
    assert ask(here, modules, WANTED) == FOUND


def test_worker_that_is_gone_or_lies_finds_no_file(ends: tuple[Channel, Channel], here: AddressSpace) -> None:
    ours, theirs = ends
    ask = InterpreterSymbolClient(ours, lambda space: None, Diagnostics())
    theirs.send([b"[1, [[[], [-1, 0]]]]"])
    assert ask(here, here.modules[:1], WANTED) == []
    theirs.close()
    assert ask(here, here.modules[:1], WANTED) == []


def test_answers_come_as_they_were_sent() -> None:
    assert unpacked(packed(5, FOUND), 3) == (5, FOUND)


@pytest.mark.parametrize(
    "answer",
    [
        [1, [None, None]],
        [1, [[[["a", 1, 1]] * 65, None]]],
        [1, [[[["a", 1 << 64, 1]], None]]],
        [1, [[[["a", True, 1]], None]]],
        [1, [[[["\u20ac", 1, 1]], None]]],
        [1, [[[], [1]]]],
        ["1", []],
        [1, 1],
        {},
    ],
)
def test_answer_that_cannot_be_is_refused(answer: object) -> None:
    with pytest.raises(ResponseRefused):
        unpacked([json.dumps(answer).encode()], 1)


@given(st.lists(st.binary(max_size=64), max_size=2))
def test_answers_of_chance_are_refused_or_taken(parts: list[bytes]) -> None:
    with contextlib.suppress(ResponseRefused):
        unpacked(parts, 3)
