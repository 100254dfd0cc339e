"""What was dumped, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyprof.records import dataclass, field

if TYPE_CHECKING:
    from pyprof.interpreters.base import Detected
    from pyprof.model.profile import Profile
    from pyprof.model.threads import ThreadStack
    from pyprof.session.post_mortem import Registers


@dataclass(frozen=True)
class Subject:
    """threads: as they are printed. header: lines, () for what is said of a process; reason: why it died, "" if it did
    not. facts: what JSON says of it besides. registers: of those frames whose are known. unread: interpreters whose
    functions are not in the stacks. post_mortem: it is a file, not a process.
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
