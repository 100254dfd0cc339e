"""A source file as it was read."""

from __future__ import annotations

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class SourceText:
    """A source file as it was read.

    Attributes:
        path: Path at which the file was found.
        lines: Its lines.
        changed_ns: Time of its last modification, in nanoseconds since the epoch.
    """

    path: str
    lines: tuple[str, ...]
    changed_ns: int
