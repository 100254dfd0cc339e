"""Tests of the cache of decoded chains: chains with a common root part are decoded once, with equal results."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from pyprof.interpreters.cpython.code_objects import PythonCode
from pyprof.interpreters.cpython.frame_reader import ChainCache, RowsKey
from pyprof.interpreters.cpython.layout import LineTableFormat
from pyprof.interpreters.function_table import FunctionTable
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

LOST, RUN_ENDS = 7, 1


def code(book: FunctionTable, name: str) -> int:
    return book.add_code(PythonCode(name, name, "f.py", 1, LineTableFormat.LOCATIONS, b""))


def rows(*frames: tuple[int, int], state: int = SampleState.INTERPRETED, mark: int = 0) -> RowsKey:
    """Return the key of a chain.

    Args:
        frames: (code, instruction) from leaf to root. A frame's address follows from its depth.
        state: State of the sample.
        mark: Address of the evaluator's mark.
    """
    packed = [struct.pack("<4Q", 1000 - n, code, instruction, code) for n, (code, instruction) in enumerate(frames)]
    stands = struct.pack("<2Q", mark, 0) if mark else b""
    return b"".join(packed), bytes(len(frames)), b"", stands, state, False, False, 0, 0, False


class Reader:
    """A reader of chains with a cache.

    Attributes:
        decoded: Number of chains that were decoded individually.
    """

    def __init__(self, book: FunctionTable) -> None:
        self._numbers = itertools.count(1)
        self._known = ChainCache(book)
        self.decoded = 0

    def of(self, *keys: RowsKey) -> list[Chain]:
        return self._known.find_chains(
            [*keys], lambda lanes: [self._decode(keys[lane]) for lane in lanes], self._at(keys)
        )

    def _decode(self, key: RowsKey) -> Chain:
        self.decoded += 1
        number = 0 if lost(key) else next(self._numbers)
        return replace(alone(key), number=number, trunk=number)

    def _at(self, keys: tuple[RowsKey, ...]) -> Callable[[Chain, int], Chain]:
        return lambda chain, lane: chain.at(places(keys[lane])[0].instruction, next(self._numbers))


def places(key: RowsKey) -> tuple[FunctionPlace, ...]:
    return tuple(FunctionPlace(code, instruction) for _, code, instruction, _ in struct.iter_unpack("<4Q", key[0]))


def lost(key: RowsKey) -> bool:
    return any(place.function == LOST for place in places(key))


def alone(key: RowsKey) -> Chain:
    """Decode a chain without the cache and without numbers, as the specification of the cache."""
    mark = struct.unpack("<2Q", key[3])[0] if key[3] else 0
    return Chain((Run(mark, places(key)),), SampleState(key[4]), "", (), marked=True)


def test_chains_are_those_that_decoding_each_gives_and_no_two_have_one_number() -> None:
    pick = random.Random(1).choice
    book = FunctionTable()
    functions = [code(book, name) for name in "abc"]
    assert LOST not in functions
    reader, met = Reader(book), dict[int, RowsKey]()
    samples = 0
    for _ in range(160):
        keys = [
            rows(
                *(
                    (pick((*functions, *functions, LOST) if not n else functions[:1]), pick(range(6)))
                    for n in range(pick((1, 2)))
                ),
                state=pick((1, 3)),
                mark=pick((0, 16)),
            )
            for _ in range(pick(range(20)))
        ]
        samples += len(keys)
        for key, chain in zip(keys, reader.of(*keys), strict=True):
            assert replace(chain, number=0, trunk=0) == alone(key)
            assert met.setdefault(chain.number, key) == key or not chain.number
            assert bool(chain.number) == bool(chain.trunk) == (not lost(key))
    assert samples > max(1000, 4 * reader.decoded)


def test_chains_of_one_trunk_differ_in_the_innermost_instruction_only() -> None:
    book = FunctionTable()
    a, b = code(book, "a"), code(book, "b")
    reader = Reader(book)
    one, two, outside, other, held = reader.of(
        rows((a, 1), (b, 1)),
        rows((a, 2), (b, 1)),
        rows((a, 1), (b, 2)),
        rows((b, 1), (b, 1)),
        rows((a, 1), (b, 1), state=3),
    )
    assert one.trunk == two.trunk
    assert reader.decoded == 4
    assert len({one.trunk, outside.trunk, other.trunk, held.trunk}) == 4
    assert two.runs == (Run(0, (FunctionPlace(a, 2), FunctionPlace(b, 1))),)
    assert reader.of(rows((a, 2), (b, 1))) == [two]
    assert reader.decoded == 4


def test_function_whose_number_was_dropped_is_decoded_again() -> None:
    book = FunctionTable()
    a, b = code(book, "a"), code(book, "b")
    reader = Reader(book)
    reader.of(rows((a, 1), (b, 1)))
    book.drop_unused({a})
    book.drop_unused({a})
    reader.of(rows((a, 2), (b, 1)))
    assert reader.decoded == 2
