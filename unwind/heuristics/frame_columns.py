"""Consecutive frames of one sample as columns, such as those of an earlier walk that a later one reuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class CachedFrames:
    """Consecutive frames of a stack, innermost first. The columns are those of model.walk.Walk, each of shape (k,)."""

    pc: npt.NDArray[np.uint64]
    exact: npt.NDArray[np.bool_]
    trust: npt.NDArray[np.uint8]
    sp: npt.NDArray[np.uint64]

    @classmethod
    def from_frames(cls, frames: Sequence[tuple[int, bool, int, int]]) -> CachedFrames:
        """Create columns of frames from (pc, exact, Trust, sp) of each frame."""
        pc, exact, trust, sp = zip(*frames, strict=True) if frames else ((), (), (), ())
        return cls(
            np.array(pc, np.uint64), np.array(exact, np.bool_), np.array(trust, np.uint8), np.array(sp, np.uint64)
        )

    def frames_after(self, at: int) -> CachedFrames:
        """Return the frames outside the frame with index `at`."""
        return CachedFrames(self.pc[at + 1 :], self.exact[at + 1 :], self.trust[at + 1 :], self.sp[at + 1 :])

    def frames_until(self, at: int) -> CachedFrames:
        """Return the frames inside the frame with index `at`."""
        return CachedFrames(self.pc[:at], self.exact[:at], self.trust[:at], self.sp[:at])

    def followed_by(self, outer: CachedFrames) -> CachedFrames:
        """Return these frames, followed by frames outside them."""
        return CachedFrames(
            np.concatenate((self.pc, outer.pc)),
            np.concatenate((self.exact, outer.exact)),
            np.concatenate((self.trust, outer.trust)),
            np.concatenate((self.sp, outer.sp)),
        )

    def __len__(self) -> int:
        return len(self.pc)
