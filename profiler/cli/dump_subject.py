"""What was dumped, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyprof.interpreters.base import Detected
    from pyprof.model.profile import Frame, Profile, ThreadInfo
    from pyprof.model.walk import StackEnd

Registers = dict[int, list[dict[str, int]]]
"""tid -> for each frame, innermost first, the registers that are known of it, by name."""


@dataclass(frozen=True)
class FrameDetail:
    """What is said of an interpreter's frame besides its name. language: of the function. source: its line, "" if it
    cannot be read. locals: name -> value, None if they were not asked for, or the thread ran meanwhile.
    """

    language: str = ""
    source: str = ""
    locals: Mapping[str, str] | None = None


@dataclass(frozen=True)
class ThreadDump:
    """One thread: its stack innermost first, markers left out, and why the stack ended there.

    merge: how frames of an interpreter and native ones could not be matched, "" if all were. known: SampleState.
    """

    info: ThreadInfo
    state: str
    end: StackEnd
    frames: list[Frame]
    merge: str = ""
    known: int = 0


@dataclass(frozen=True)
class Subject:
    """states: by tid. order: tids as they are printed, () for ascending. unseen: threads without a sample.

    header: lines, () for what is said of a process; reason: why it died, "" if it did not. facts: what JSON says of
    it besides. registers: of those frames whose are known. details: tid -> of each interpreter's frame, innermost
    first. unread: interpreters whose functions are not in the stacks. post_mortem: it is a file, not a process.
    """

    pid: int
    exe: str
    arch: str
    profile: Profile
    states: dict[int, str]
    order: tuple[int, ...] = ()
    unseen: tuple[ThreadDump, ...] = ()
    header: tuple[str, ...] = ()
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    registers: Registers = field(default_factory=dict)
    details: Mapping[int, list[FrameDetail]] = field(default_factory=dict)
    unread: tuple[Detected, ...] = ()
    post_mortem: bool = False
