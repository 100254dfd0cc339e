"""Tests of sending chains of interpreter frames from sampler to worker.

Each is sent once, or as a difference from a sent one.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import cast

import pytest

from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.session.worker import message_codec
from pyprof.session.worker.message_channel import Received
from pyprof.session.worker.message_codec import Packer, SamplerCalls, Unpacker
from pyprof.session.worker.messages import Response

DEPTH = 30


def chain(trunk: int, instruction: int, number: int) -> Chain:
    frames = tuple(FunctionPlace(trunk, n) for n in range(DEPTH))
    plain = Chain((Run(trunk, frames), Run(8, ())), SampleState.INTERPRETED, "", (5,), True, number=number, trunk=trunk)
    return plain.at(instruction, number)


class Wire:
    def __init__(self) -> None:
        self._packer, self._unpacker = Packer(lambda known: None), Unpacker(cast(SamplerCalls, None))

    def sent(self, chain: Chain) -> tuple[Chain, int]:
        """Send a chain, and return it as received and its size in bytes."""
        parts, _ = self._packer.pack(Response(chain))
        found = self._unpacker.unpack(Received(tuple(memoryview(bytes(part)) for part in parts), ()))
        assert isinstance(found, Response)
        assert isinstance(found.value, Chain)
        return found.value, sum(len(bytes(part)) for part in parts)


@pytest.mark.parametrize("most", [3, 1 << 13])
def test_chains_arrive_as_they_are_however_many_are_remembered(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(message_codec, "_MAX_CHAINS", most)
    pick, between = random.Random(most).choice, Wire()
    numbers: dict[tuple[int, int], int] = {}
    for _ in range(600):
        trunk, instruction = pick(range(1, 6)), pick(range(9))
        sent = chain(trunk, instruction, numbers.setdefault((trunk, instruction), 100 + len(numbers)))
        sent = pick((sent, sent, replace(sent, trunk=0, number=sent.number + 500), replace(sent, trunk=0, number=0)))
        assert between.sent(sent)[0] == sent


def test_chain_of_a_trunk_that_was_sent_is_short() -> None:
    between = Wire()
    _, whole = between.sent(chain(1, 1, 10))
    second, varied = between.sent(chain(1, 2, 11))
    again, known = between.sent(chain(1, 2, 11))
    assert again == second
    assert known <= varied
    assert varied < whole / 3
    assert between.sent(chain(2, 2, 12))[1] > 2 * varied
