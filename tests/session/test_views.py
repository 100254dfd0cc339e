"""What of a recording is shown: the holders of a lock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyprof.model.interpreter import SampleState
from pyprof.options import ViewOptions
from pyprof.session.views import view
from tests.session.test_recorder import STOPPED, batch, recorder

INTERPRETED, HOLDS = SampleState.INTERPRETED, SampleState.INTERPRETED | SampleState.HOLDS_LOCK


@pytest.mark.parametrize(
    ("states", "free_threaded", "kept", "said"),
    [
        ((HOLDS, INTERPRETED), False, 1, "1 of 2 samples."),
        ((HOLDS, INTERPRETED), True, 1, "1 of 2 samples."),
        ((INTERPRETED, INTERPRETED), True, 0, "0 of 2 samples. This CPython is free-threaded: it has no GIL."),
        ((INTERPRETED, INTERPRETED), False, 0, "0 of 2 samples."),
        ((0, 0), False, 0, "0 of 2 samples. No CPython was seen in them; samples without stops do not tell either "
                           "(--collector ptrace)."),
    ],
)  # fmt: skip
def test_no_holder_of_the_lock_is_explained(states: tuple[int, int], free_threaded: bool, kept: int, said: str) -> None:
    rec = recorder()
    rec.add(batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20)))
    window = replace(rec.cut(), state=np.array(states, np.int32))
    shown = view(window, ViewOptions(lock_holder=True), frozenset(), lambda key: False, free_threaded)
    assert len(shown.node) == kept
    assert shown.after.notes[-1] == f"Only threads that held the GIL: {said}"
