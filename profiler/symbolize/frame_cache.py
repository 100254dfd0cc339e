"""A cache of finished frames for the windows of one recording, which repeat the same frames, and their modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyprof.model.modules import Module
from pyprof.model.profile import Frame, Line, ModuleInfo
from pyprof.model.stacks import FrameKey
from pyprof.records import replace
from pyprof.symbolize.symbol_table import Labels


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


class FrameModules:
    """The modules of a profile's frames in the order of their first use, with the labels for code without a name."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._index: dict[tuple[int, int, str, str], int] = {}
        self._seen: dict[tuple[int, str], tuple[Module, int]] = {}
        self._infos: list[ModuleInfo] = []

    def module_index(self, module: Module, build_id: str, lines: tuple[Line, ...]) -> int:
        _, at = self._seen.get((id(module), build_id)) or (module, -1)
        if at < 0:
            at = self._add(module, build_id)
            self._seen[id(module), build_id] = module, at  # kept alive, so that no other object gets its id
        info = self._infos[at]
        if info.has_functions and info.has_lines:
            return at
        functions, has_lines = any(line.system_name for line in lines), any(line.line for line in lines)
        if functions > info.has_functions or has_lines > info.has_lines:
            self._infos[at] = replace(
                info, has_functions=info.has_functions or functions, has_lines=info.has_lines or has_lines
            )
        return at

    def _add(self, module: Module, build_id: str) -> int:
        """Add a module of a profile and return its index. Mappings of one file at one place count as one module."""
        code = [m for m in module.mappings if m.executable] or list(module.mappings)
        at = self._index.setdefault((code[0].start, code[-1].end, module.path, build_id), len(self._infos))
        if at == len(self._infos):
            self._infos.append(
                ModuleInfo(module.path, build_id, code[0].start, code[-1].end, code[0].offset, False, False)
            )
        return at

    def module_infos(self) -> tuple[ModuleInfo, ...]:
        return tuple(self._infos)
