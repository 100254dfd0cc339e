"""Frames whose names will not change, by their keys: the parts of a window have the same ones again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyprof.model.modules import Module
from pyprof.model.profile import Frame
from pyprof.model.stacks import FrameKey
from pyprof.records import replace
from pyprof.symbolize.frame_modules import FrameModules


class SettledFrame(NamedTuple):
    """frame: its module indexes the modules of the profile that it was made for."""

    frame: Frame
    module: Module
    build_id: str

    def within(self, modules: FrameModules) -> Frame:
        """The frame of another profile, which has these modules."""
        index = modules.index(self.module, self.build_id, self.frame.lines)
        return self.frame if index == self.frame.module else replace(self.frame, module=index)


class SettledFrames:
    """Of one recording: what was asked for since the window before the last one began."""

    def __init__(self) -> None:
        self._now: dict[FrameKey, SettledFrame] = {}
        self._before: dict[FrameKey, SettledFrame] = {}

    def among(self, keys: Sequence[FrameKey]) -> dict[FrameKey, SettledFrame]:
        """Those of these that are settled."""
        if before := self._before:
            self._now.update((key, before[key]) for key in keys if key in before)
        now = self._now
        return {key: now[key] for key in keys if key in now}

    def add(self, key: FrameKey, frame: Frame, module: Module, build_id: str) -> None:
        self._now[key] = SettledFrame(frame, module, build_id)

    def turn(self) -> None:
        """Another window has begun."""
        self._before, self._now = self._now, {}
