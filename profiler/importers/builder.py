"""From frames and stacks in any order to a Profile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pyprof.model.contents import summary_of_part
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.model.tree import Tree
from pyprof.model.walk import Trust
from pyprof.records import dataclass, replace

_MOST_NS = 1 << 62
NOBODY = ThreadInfo(0, 0, "", "")
"""Of files that name no thread."""


@dataclass(frozen=True, slots=True)
class About:
    """What a file says as a whole. start_ns: since the epoch; 0 where it does not say. note: for the reader."""

    title: str
    value_types: tuple[ValueType, ...]
    note: str
    start_ns: int = 0
    duration_ns: int = 0
    period_ns: int = 1


def named(name: str, file: str | None = None, line: int = 0, kind: FrameKind = FrameKind.NATIVE) -> Frame:
    """A frame of which only the function is known."""
    return Frame(kind, 0, 0, 0, -1, (Line(name, name, 0, file, line),), Trust.CONTEXT, name)


class Builder:
    """Takes frames and samples; build() is the Profile. modules: those that frames refer to."""

    def __init__(self) -> None:
        self.modules: list[ModuleInfo] = []
        self._frames: dict[Frame, int] = {}
        self._threads: dict[ThreadInfo, int] = {}
        self._tree = Tree()
        self._samples: list[tuple[int, int, int]] = []
        self._values: list[Sequence[int]] = []

    def frame(self, frame: Frame) -> int:
        return self._frames.setdefault(frame, len(self._frames))

    def stack(self, frames: Iterable[int], below: int = 0) -> int:
        """The node of frames, outermost first, below a node."""
        for frame in frames:
            below = self._tree.child(below, frame)
        return below

    def sample(self, stack: int, values: Sequence[int], thread: ThreadInfo = NOBODY, time_ns: int = 0) -> None:
        """time_ns: since the file's beginning."""
        self._samples.append((stack, self._threads.setdefault(thread, len(self._threads)), time_ns))
        self._values.append(values)

    def build(self, about: About) -> Profile:
        """Raises OverflowError for numbers that no Profile holds."""
        if not all(0 <= number < _MOST_NS for number in (about.start_ns, about.duration_ns, about.period_ns)):
            raise OverflowError("a time below 0, or too large")
        columns = np.array(self._samples, np.int64).reshape(-1, 3).T
        profile = Profile(
            value_types=about.value_types,
            period_ns=max(about.period_ns, 1),
            start_ns=about.start_ns,
            duration_ns=about.duration_ns,
            title=about.title,
            frames=tuple(self._frames),
            parent=np.array(self._tree.parent, np.int32),
            frame=np.array(self._tree.frame, np.int32),
            modules=tuple(self.modules),
            threads=tuple(self._threads),
            time_ns=columns[2] + about.start_ns,
            stack=columns[0].astype(np.int32),
            thread=columns[1].astype(np.int32),
            values=np.array(self._values, np.int64).reshape(-1, len(about.value_types)),
            summary=Summary(),
        )
        return _summarized(profile, about)


def _summarized(profile: Profile, about: About) -> Profile:
    known = Summary(duration_s=round(about.duration_ns / 1e9, 6), notes=(about.note,))
    return replace(profile, summary=summary_of_part(known, profile))
