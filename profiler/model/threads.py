"""Stacks of threads at one moment, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyprof.model.markers import MarkKind
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo
from pyprof.model.walk import StackEnd
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class FrameDetail:
    """What is said of an interpreter's frame besides its name. language: of the function. source: its line, "" if it
    cannot be read. locals: name -> value, None if they were not asked for, or the thread ran meanwhile.
    """

    language: str = ""
    source: str = ""
    locals: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread and its stack, innermost frame first; markers are left out, and in what the thread waits.

    state: "running", "sleeping", ... as the kernel says. end: why the stack ended. merge: how frames of an interpreter
    and native ones could not be matched, "" if all were. known: SampleState. details: of each interpreter's frame,
    innermost first; () where nothing was read.
    """

    info: ThreadInfo
    state: str
    end: StackEnd
    frames: tuple[Frame, ...]
    merge: str = ""
    known: int = 0
    details: tuple[FrameDetail, ...] = ()

    @property
    def tid(self) -> int:
        return self.info.tid

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def whole(self) -> bool:
        """Does the stack reach the thread's first function?"""
        return self.end is StackEnd.ROOT

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of all functions, innermost first, inlined ones included."""
        return tuple(
            name for frame in self.frames for name in ([line.function for line in frame.lines] or [frame.title])
        )

    @property
    def interpreted(self) -> tuple[Frame, ...]:
        """The frames that an interpreter runs; details runs along with them."""
        return tuple(frame for frame in self.frames if frame.kind == FrameKind.INTERPRETER)


def thread_stacks(profile: Profile, states: Mapping[int, str]) -> Iterator[ThreadStack]:
    """The last sample of each thread, by tid. states: by tid."""
    threads = profile.thread.tolist()
    last = dict(zip(threads, profile.stack.tolist(), strict=True))
    known = dict(zip(threads, profile.state.tolist(), strict=True)) if profile.state is not None else {}
    for index, info in enumerate(profile.threads):
        path = profile.path(last[index])
        end, merge = StackEnd.ROOT if path else StackEnd.UNREADABLE, ""
        while path and (mark := path[0].mark) is not None:
            path.pop(0)
            if mark.kind is MarkKind.MERGE:
                merge = mark.title.strip("[]")
            elif mark.kind is MarkKind.CUT:
                end = mark.end
        frames = tuple(frame for frame in reversed(path) if frame.kind != FrameKind.KERNEL)  # the state says it
        yield ThreadStack(info, states.get(info.tid, "running"), end, frames, merge, known.get(index, 0))
