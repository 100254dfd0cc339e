"""What an exporter is: a pure function from a profile to bytes. Sorted, no clock, no random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from pyprof.model.profile import Profile


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """threads: each stack begins with its thread (and process) as root frames. full_paths: modules by path, not by name."""

    threads: bool = False
    full_paths: bool = False


class Exporter(Protocol):
    """One output format.

    name: as in --format. suffixes: file names that mean it, longest match wins (".speedscope.json" before ".json").
    text: may go to a terminal.
    """

    name: str
    suffixes: tuple[str, ...]
    text: bool

    def write(self, profile: Profile, out: BinaryIO, options: ExportOptions) -> None: ...
