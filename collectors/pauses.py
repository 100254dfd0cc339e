"""The log of stops: a column that grows without being copied for whoever looks at it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class PauseLog:
    """Lengths of stops, growing for as long as the recording lasts."""

    def __init__(self) -> None:
        self._lengths = np.zeros(1024, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, pause_ns: int) -> None:
        if self._count == len(self._lengths):
            self._lengths = np.concatenate((self._lengths, np.zeros_like(self._lengths)))
        self._lengths[self._count] = pause_ns
        self._count += 1

    def view(self) -> npt.NDArray[np.int64]:
        """(stops,) ns, without a copy; what is logged later does not show in it."""
        view = self._lengths[: self._count]
        view.flags.writeable = False
        return view
