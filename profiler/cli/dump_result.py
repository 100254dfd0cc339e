"""The result of a dump, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyprof.records import dataclass, field

if TYPE_CHECKING:
    from pyprof.interpreters.base import Detected
    from pyprof.model.profile import Profile
    from pyprof.model.thread_stacks import ThreadStack
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
