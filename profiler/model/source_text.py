"""A source file as it was read."""

from __future__ import annotations

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class SourceText:
    """path: where it was found. changed_ns: when it was last written, since the epoch."""

    path: str
    lines: tuple[str, ...]
    changed_ns: int
