"""What an exporter is: a pure function from a profile to bytes. Sorted, no clock, no random. And what a sink is."""

from __future__ import annotations

from typing import BinaryIO, Protocol

from pyprof.model.profile import Profile
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """threads: each stack begins with its thread as root frame, below its process where there are several; processes:
    with its process, where there are several. full_paths: modules by path.
    """

    threads: bool = False
    processes: bool = False
    full_paths: bool = False


class Exporter(Protocol):
    """One output format; exporters/registry.py has the list.

    name: as in --format. suffixes: file names that mean it, longest match wins (".speedscope.json" before ".json").
    text: may go to a terminal.
    """

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    @property
    def text(self) -> bool: ...

    def write(self, profile: Profile, out: BinaryIO, options: ExportOptions) -> None: ...


class Sink(Protocol):
    """What receives profile after profile: files, a spool, a server, a terminal."""

    def take(self, profile: Profile, number: int) -> None:
        """number: of the window, from 0. May run in another process than the recording: what a sink keeps in memory
        stays there. Raises OutputError.
        """
        ...
