"""A cache of finished frames for the windows of one recording, which repeat the same frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyprof.model.modules import Module
from pyprof.model.profile import Frame
from pyprof.model.stacks import FrameKey
from pyprof.records import replace
from pyprof.symbolize.profile_modules import FrameModules


class SettledFrame(NamedTuple):
    """A finished frame whose name no later lookup changes. Its module index is that of the profile for which it was
    made.
    """

    frame: Frame
    module: Module
    build_id: str

    def convert_modules(self, modules: FrameModules) -> Frame:
        """Return the frame for another profile, whose modules have other indices."""
        index = modules.module_index(self.module, self.build_id, self.frame.lines)
        return self.frame if index == self.frame.module else replace(self.frame, module=index)


class SettledFrameCache:
    """The finished frames of one recording that the current or the previous window used."""

    def __init__(self) -> None:
        self._now: dict[FrameKey, SettledFrame] = {}
        self._before: dict[FrameKey, SettledFrame] = {}

    def settled_among(self, keys: Sequence[FrameKey]) -> dict[FrameKey, SettledFrame]:
        """Return the cached finished frames among these keys."""
        if before := self._before:
            self._now.update((key, before[key]) for key in keys if key in before)
        now = self._now
        return {key: now[key] for key in keys if key in now}

    def add_frame(self, key: FrameKey, frame: Frame, module: Module, build_id: str) -> None:
        self._now[key] = SettledFrame(frame, module, build_id)

    def begin_window(self) -> None:
        """Begin another window, and drop finished frames that the last two windows did not use."""
        self._before, self._now = self._now, {}
