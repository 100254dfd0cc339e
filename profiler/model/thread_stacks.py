"""Stacks of threads at one moment, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.marker_frames import MarkKind
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo
from pyprof.model.unwind_result import StackEnd

GOROUTINE = "goroutine "
"""Beginning of a goroutine's name, before its number. A goroutine stands in place of a thread."""


@dataclass(frozen=True, slots=True)
class FrameDetail:
    """Details of an interpreter frame, such as its local variables.

    Attributes:
        language: Language of the function.
        source: Source line of the frame, "" if it cannot be read.
        locals: Values of local variables by name, None if they were not requested or the thread has run meanwhile.
    """

    language: str = ""
    source: str = ""
    locals: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread with its state and its stack at one moment.

    Attributes:
        info: The thread.
        state: "running", "sleeping", ... as the kernel reports it.
        end: Why the stack ended.
        frames: Innermost first, without markers and without the frames of a wait.
        merge: How interpreter frames and native ones could not be merged, "" if all were.
        known: Flags of the sample (SampleState).
        details: Details of each interpreter frame, innermost first; empty if nothing was read.
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
        """Tid of the thread."""
        return self.info.tid

    @property
    def goroutine(self) -> int | None:
        """The goroutine's number if this is the stack of a goroutine, None if it is that of a thread."""
        return int(self.name.removeprefix(GOROUTINE)) if self.tid < 0 else None

    @property
    def name(self) -> str:
        """Name of the thread, as the kernel has it."""
        return self.info.name

    @property
    def whole(self) -> bool:
        """True if the stack reaches the thread's first function."""
        return self.end is StackEnd.ROOT

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of all functions on the stack, innermost first, with inlined ones."""
        return tuple(
            name for frame in self.frames for name in ([line.function for line in frame.lines] or [frame.title])
        )

    @property
    def interpreted(self) -> tuple[Frame, ...]:
        """The interpreter frames of the stack, to which `details` corresponds."""
        return tuple(frame for frame in self.frames if frame.kind == FrameKind.INTERPRETER)


def thread_stacks(profile: Profile, states: Mapping[int, str]) -> Iterator[ThreadStack]:
    """Yield the stack of each thread, from its last sample.

    Args:
        profile: The profile.
        states: States by tid.
    """
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
        frames = tuple(frame for frame in reversed(path) if frame.kind != FrameKind.KERNEL)  # `state` tells it
        yield ThreadStack(info, states.get(info.tid, "running"), end, frames, merge, known.get(index, 0))


def leave_out_system(threads: Sequence[ThreadStack]) -> list[ThreadStack]:
    """Return the stacks without those of goroutines that Go's runtime starts for its own work. Go's tracebacks leave
    these out, too.
    """
    return [thread for thread in threads if thread.tid >= 0 or not _is_of_runtime(thread)]


def _is_of_runtime(thread: ThreadStack) -> bool:
    outer = [name for name in thread.functions if not name.startswith("runtime.goexit")]
    return bool(outer) and outer[-1].startswith("runtime.") and outer[-1] != "runtime.main"
