"""The result of `pyprof dump` as values, and the output of its interpreter frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyprof.records import dataclass, field

if TYPE_CHECKING:
    from pyprof.interpreters.base import Detected
    from pyprof.model.profile import Frame, Profile
    from pyprof.model.thread_stacks import FrameDetail, ThreadStack
    from pyprof.session.post_mortem import Registers


@dataclass(frozen=True)
class Subject:
    """A dumped process, core file or crash dump.

    Attributes:
        threads: Threads in the order in which they are printed.
        header: First lines, () for the usual line of a process.
        reason: Why the process died, "" if it did not.
        facts: Additional entries for the JSON.
        registers: Registers of the frames for which they are known.
        unread: Interpreters whose functions are not in the stacks.
        post_mortem: True for a file, False for a process.
    """

    pid: int
    exe: str
    arch: str
    profile: Profile
    threads: tuple[ThreadStack, ...]
    header: tuple[str, ...] = ()
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    registers: Registers = field(default_factory=dict)
    unread: tuple[Detected, ...] = ()
    post_mortem: bool = False


def interpreter_words(state: int, merge: str) -> Iterator[str]:
    """Yield words about the state of a thread that belongs to an interpreter, such as whether it holds the GIL.

    Args:
        state: SampleState bits.
        merge: Which interpreter frames could not be matched.
    """
    from pyprof.model.interpreter_state import SampleState

    if state & SampleState.HOLDS_LOCK:
        yield "holds the GIL"
    if state & SampleState.COLLECTING:
        yield "collects garbage"
    if merge:
        yield merge


def interpreter_json(state: int, merge: str) -> dict[str, Any] | None:
    """Return the interpreter's part of a thread's JSON; None if the thread does not belong to an interpreter."""
    from pyprof.model.interpreter_state import SampleState

    if not state & SampleState.INTERPRETED:
        return None
    return {
        "gil": bool(state & SampleState.HOLDS_LOCK),
        "collecting": bool(state & SampleState.COLLECTING),
        "merge": merge or None,
    }


def _kind(detail: FrameDetail) -> str:
    return detail.language.lower() or "interpreted"


def interpreted_lines(frame: Frame, detail: FrameDetail) -> Iterator[str]:
    """Yield the lines of an interpreter frame in the columns of native frames: the frame, its source line, and its
    local variables.
    """
    line = frame.lines[0]
    source = f" at {line.file}:{line.line or '?'}" if line.file else ""
    yield f"{_kind(detail):<18}  {frame.title}{source}  [{frame.trust.label}]"
    if detail.source:
        yield f"{'':28}{detail.source}"
    for name, value in (detail.locals or {}).items():
        yield f"{'':30}{name} = {value}"


def add_detail(entry: dict[str, Any], detail: FrameDetail) -> None:
    """Add details such as local variables to the JSON entry of an interpreter frame."""
    entry["kind"] = _kind(detail)
    entry["source"] = detail.source or None
    if detail.locals is not None:
        entry["locals"] = dict(detail.locals)


def interpreted_frame(frame: Frame) -> dict[str, Any]:
    """Return the JSON of an interpreter frame, with the keys of native frames."""
    line = frame.lines[0]
    return {
        "kind": "interpreted",
        "pc": None,
        "module": None,
        "build_id": None,
        "rel": None,
        "function": frame.title,
        "offset": None,
        "file": line.file,
        "line": line.line or None,
        "inlined": False,
        "trust": frame.trust.label,
    }
