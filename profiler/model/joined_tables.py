"""Several profiles in one set of tables. Equal modules, frames, stacks and threads of two profiles become one.

The tables only grow. Each added profile gets the numbers of its samples in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, ModuleInfo, Profile, ThreadInfo
from pyprof.records import replace


class JoinedTables:
    """The tables of several profiles, with equal entries stored once.

    Attributes:
        frames: Number of each frame.
        tree: The stacks.
        threads: Threads by number.
    """

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.tree = Tree()
        self.threads: list[ThreadInfo] = []
        self._modules: dict[ModuleInfo, int] = {}
        self._named: list[tuple[bool, bool]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def add_profile(self, profile: Profile) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Add the modules, frames, stacks and threads of a profile to the common tables.

        Returns:
            (node, number of the thread) of each sample.
        """
        modules = [self._module(info) for info in profile.modules]
        frames = [self._frame(frame, modules) for frame in profile.frames]
        frame_of = profile.frame.tolist()
        leaves = np.unique(profile.stack).tolist()
        nodes = rewrite(profile.parent.tolist(), lambda node: (frames[frame_of[node]],), self.tree, leaves)
        threads = np.array([self._thread(info) for info in profile.threads], np.int32)
        return np.array(nodes, np.int32)[profile.stack], threads[profile.thread]

    def _module(self, info: ModuleInfo) -> int:
        """Return the common number of a profile's module. The module has names and lines if it has any in one of the
        profiles.
        """
        number = self._modules.setdefault(replace(info, has_functions=False, has_lines=False), len(self._modules))
        functions, lines = self._named[number] if number < len(self._named) else (False, False)
        self._named[number : number + 1] = [(functions or info.has_functions, lines or info.has_lines)]
        return number

    def _frame(self, frame: Frame, modules: Sequence[int]) -> int:
        """Return the common number of a profile's frame.

        Numbers of interpreter functions are dropped, because each recording has its own.
        """
        module = modules[frame.module] if frame.module >= 0 else -1
        if module != frame.module or frame.place is not None:
            frame = replace(frame, module=module, place=None)
        return self.frames.setdefault(frame, len(self.frames))

    def _thread(self, info: ThreadInfo) -> int:
        """Return the common number of a profile's thread.

        A thread with a known start time stays the same under another name, and gets the last name.
        """
        key = (info.key, info.process_key, info.labels) if info.started and info.process_started else (info,)
        number = self._numbers.setdefault(key, len(self._numbers))
        self.threads[number : number + 1] = [info]
        return number

    def modules(self) -> tuple[ModuleInfo, ...]:
        return tuple(
            replace(info, has_functions=functions, has_lines=lines)
            for info, (functions, lines) in zip(self._modules, self._named, strict=True)
        )

    def threads_in_order(self) -> tuple[tuple[ThreadInfo, ...], npt.NDArray[np.int32]]:
        """Return the threads of all profiles sorted by key, and the index of each number."""
        order = sorted(range(len(self.threads)), key=lambda number: (self.threads[number].key, number))
        index = np.zeros(len(order), np.int32)
        index[order] = np.arange(len(order), dtype=np.int32)
        return tuple(self.threads[number] for number in order), index
