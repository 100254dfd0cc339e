"""How `pyprof dump` shows what an interpreter runs in a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyprof.cli.dump_subject import FrameDetail

if TYPE_CHECKING:
    from pyprof.cli.dump_subject import ThreadDump
    from pyprof.model.profile import Frame
    from pyprof.session.runtimes import Runtimes

_MOST_SOURCE = 4 << 20
_LONGEST_LINE = 200


def interpreter_words(known: int, merge: str) -> Iterator[str]:
    """What is known of a thread that belongs to an interpreter. known: SampleState; merge: what was not matched."""
    from pyprof.model.interpreter import SampleState

    if known & SampleState.HOLDS_LOCK:
        yield "holds the GIL"
    if known & SampleState.COLLECTING:
        yield "collects garbage"
    if merge:
        yield merge


def interpreter_json(known: int, merge: str) -> dict[str, Any] | None:
    """None of a thread that no interpreter knows."""
    from pyprof.model.interpreter import SampleState

    if not known & SampleState.INTERPRETED:
        return None
    return {
        "gil": bool(known & SampleState.HOLDS_LOCK),
        "collecting": bool(known & SampleState.COLLECTING),
        "merge": merge or None,
    }


@dataclass(frozen=True)
class LocalsWanted:
    """redact: not the values of names that look secret."""

    locals: bool
    redact: bool


def details(
    pid: int, threads: Sequence[ThreadDump], runtimes: Runtimes, wanted: LocalsWanted
) -> dict[int, list[FrameDetail]]:
    """Of interpreters' frames of a live process, by tid. Local variables are read now: only where the thread has the
    very frames still that were sampled.
    """
    from pyprof.model.profile import FrameKind

    sources = SourceFiles(pid)
    found = {}
    for thread in threads:
        frames = [frame for frame in thread.frames if frame.kind == FrameKind.INTERPRETER]
        values: list[tuple[int, dict[str, str]]] = []
        if wanted.locals and frames:
            values = runtimes.local_values(pid, thread.info.tid, wanted.redact)
        same = [pc for pc, _ in values] == [frame.pc for frame in frames]
        found[thread.info.tid] = [
            FrameDetail(runtimes.language(frame.pc), sources.line(frame), values[nth][1] if same else None)
            for nth, frame in enumerate(frames)
        ]
    return found


class SourceFiles:
    """Lines of the target's source files, as they are now where the target sees them, and may read them."""

    def __init__(self, pid: int) -> None:
        from pyprof.objfile.foreign_path import rights_below

        self._pid = pid
        self._root = f"/proc/{pid}/root"
        self._rights = rights_below(self._root)
        self._files: dict[str, list[str]] = {}

    def line(self, frame: Frame) -> str:
        """Without what stands around it; "" where the file cannot be read or has no such line."""
        place = frame.lines[0]
        if not place.file or not place.line:
            return ""
        if place.file not in self._files:
            self._files[place.file] = self._read(place.file)
        lines = self._files[place.file]
        return lines[place.line - 1].strip()[:_LONGEST_LINE] if place.line <= len(lines) else ""

    def _read(self, name: str) -> list[str]:
        from pyprof.objfile.foreign_path import read_file

        try:
            path = name if name.startswith("/") else os.readlink(f"/proc/{self._pid}/cwd") + "/" + name
            return read_file(self._root, path, _MOST_SOURCE, self._rights).decode("utf-8", "replace").splitlines()
        except OSError:
            return []


def _kind(detail: FrameDetail) -> str:
    return detail.language.lower() or "interpreted"


def interpreted_lines(frame: Frame, detail: FrameDetail) -> Iterator[str]:
    """A frame in the columns of the native ones, its source line, its local variables."""
    line = frame.lines[0]
    source = f" at {line.file}:{line.line or '?'}" if line.file else ""
    yield f"{_kind(detail):<18}  {frame.title}{source}  [{frame.trust.label}]"
    if detail.source:
        yield f"{'':28}{detail.source}"
    for name, value in (detail.locals or {}).items():
        yield f"{'':30}{name} = {value}"


def add_detail(entry: dict[str, Any], detail: FrameDetail) -> None:
    """Of an interpreted frame's entry in JSON."""
    entry["kind"] = _kind(detail)
    entry["source"] = detail.source or None
    if detail.locals is not None:
        entry["locals"] = dict(detail.locals)


def interpreted_frame(frame: Frame) -> dict[str, Any]:
    """A frame with the keys of the native ones."""
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
