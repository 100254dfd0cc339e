"""Tests of the note in a recording that says why BPF is not available."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from pyprof.collectors.base import Collector, CollectorRefused, CollectorStats
from pyprof.collectors.hybrid.without_program import WithoutProgram, note

pytestmark = [pytest.mark.live, pytest.mark.system]

WHY = CollectorRefused("programs in the kernel need more.", "sudo pyprof …")
BARE = cast("Collector", SimpleNamespace(stats=lambda: CollectorStats(notes=("Sampled by stops",)), batches=lambda: []))


@pytest.mark.parametrize("certain", [False, True])
def test_it_is_said_once_where_the_program_would_have_been_taken(certain: bool) -> None:
    inner = WithoutProgram(BARE, WHY, certain)
    outer = WithoutProgram(inner, WHY, certain=True)
    assert list(outer.batches()) == []
    assert inner.stats().notes == ("Sampled by stops", *([note(WHY)] if certain else []))
    assert outer.stats().notes == ("Sampled by stops", note(WHY))
    assert "need more (sudo pyprof …)" in note(WHY)
