"""A collector that yields again what collectors/replay/batch_log.py saved, in the same order.

It needs nothing of the target. The log has the pages of memory that were read, and the files are next to the log.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.replay.batch_log import COLUMNS, PAGE, SLAB, VERSION
from pyprof.errors import FormatError
from pyprof.model.arch import ARCHES, Arch
from pyprof.model.interpreter_state import Chain, FunctionPlace, Run, SampleState
from pyprof.model.marker_frames import Blocked, KernelFrame
from pyprof.model.modules import AddressSpace, Mapping, Module, ReadMemory
from pyprof.model.pause_histogram import BUCKETS, Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import Piece, SampleBatch, StackSlab
from pyprof.records import field_names, replace


class ReplayCollector:
    """A collector that yields the batches of a saved log again.

    Args:
        path: The log.
        files: Folder below which the modules' files are, with their own paths.

    Raises:
        FormatError: The file is not a log of this version.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str, files: str) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
            self._log: dict[str, Any] = json.loads(self._zip.read("log.json"))
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise FormatError(path, 0, f"no batch log: {error}") from error
        if self._log.get("version") != VERSION:
            raise FormatError(path, 0, f"a batch log of version {self._log.get('version')}, not {VERSION}")
        self._files = files
        self._arch: Arch = next(arch for arch in ARCHES.values() if arch.name == self._log["arch"])
        self._spaces = {entry["id"]: self._space(entry) for entry in self._log["spaces"]}
        self._at = 0
        self._stopped = False

    @property
    def extra(self) -> dict[str, Any]:
        """JSON values that the writer of the batch log added."""
        extra: dict[str, Any] = self._log["extra"]
        return extra

    @property
    def pid(self) -> int:
        return int(self._log["threads"][0]["pid"])

    def batches(self) -> Iterator[SampleBatch]:
        while self._at < self._log["batches"] and not self._stopped:
            self._at += 1
            yield self._batch(self._at - 1)

    def _batch(self, number: int) -> SampleBatch:
        at = f"batch/{number}"
        more = json.loads(self._zip.read(f"{at}/more.json"))
        pieces = {
            int(lane): tuple(Piece(avma, bytes.fromhex(data)) for avma, data in found)
            for lane, found in more["pieces"].items()
        }
        slab = {name: self._column(f"{at}/{name}.npy") for name in SLAB}
        columns: dict[str, Any] = {name: self._column(f"{at}/{name}.npy") for name in COLUMNS}
        kind, time_ns, pid, tid = (columns[name] for name in ("kind", "time_ns", "pid", "tid"))
        return replace(
            build_stackless_batch(self._arch, more.get("source_id", 0), kind, time_ns, pid, tid),
            stack=StackSlab(**slab, pieces=pieces),  # type: ignore[arg-type]  # the slab's columns are always there
            spaces={space: self._spaces[space] for space in more["spaces"]},
            unknown=frozenset(more["unknown"]),
            chains={int(lane): _chain(chain) for lane, chain in more["chains"].items()},
            kernel_stacks=tuple(tuple(map(_kernel_frame, frames)) for frames in more["kernel_stacks"]),
            followed=more["followed"],
            stopped=more["stopped"],
            referred=more.get("referred", False),
            **columns,
        )

    def _column(self, name: str) -> npt.NDArray[Any] | None:
        try:
            data = self._zip.read(name)
        except KeyError:
            return None
        column: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return column

    def _space(self, entry: dict[str, Any]) -> AddressSpace:
        mappings = tuple(Mapping(**mapping) for mapping in entry["mappings"])
        return AddressSpace(
            entry["id"],
            entry["pid"],
            entry["generation"],
            mappings,
            self._memory(entry["id"]),
            self._files,
            self._find,
            complete=entry["complete"],
        )

    def _find(self, module: Module) -> Iterable[tuple[str, bool]]:
        path = os.path.join(self._files, module.path.lstrip("/"))
        return [(path, True)] if module.has_file and os.path.exists(path) else []

    def _memory(self, space: int) -> ReadMemory:
        head = f"memory/{space}/"
        names = {int(name[len(head) :], 16): name for name in self._zip.namelist() if name.startswith(head)}
        return _reader(lambda page: self._zip.read(names[page]) if page in names else b"")

    def learn(self, feedback: Feedback) -> None:
        """Ignore feedback, because the contents of the next batches are fixed by the log."""

    def threads(self) -> list[ThreadInfo]:
        return [ThreadInfo(**thread) for thread in self._log["threads"]]

    def retire(self) -> None:
        """Ignore the call: the threads of a batch log do not end."""

    def stats(self) -> CollectorStats:
        return _stats(self._log["last" if self._at == self._log["batches"] else "first"])

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._stopped = True


def _reader(page_of: Callable[[int], bytes]) -> ReadMemory:
    def read(avma: int, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            page, within = divmod(avma + len(found), PAGE)
            part = page_of(page)[within : within + size - len(found)]
            if not part:
                break
            found += part
        return bytes(found)

    return read


def _kernel_frame(stored: int | list[Any]) -> KernelFrame:
    return Blocked(*stored) if isinstance(stored, list) else stored


def _chain(stored: dict[str, Any]) -> Chain:
    runs = tuple(
        Run(run["marker"], tuple(FunctionPlace(*frame) for frame in run["frames"]), run["waits"])
        for run in stored["runs"]
    )
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    return Chain(**(plain | {"runs": runs, "state": SampleState(stored["state"])}))


def _stats(stored: dict[str, Any]) -> CollectorStats:
    """Convert saved collector statistics. Unknown fields are dropped, and missing ones have their defaults."""
    counts = np.zeros(BUCKETS, np.int64)
    for bucket, count in stored["pauses"]["counts"].items():
        counts[int(bucket)] = count
    known = set(field_names(CollectorStats))
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in stored.items() if key in known
    }
    return CollectorStats(**(plain | {"pauses": Pauses(counts, stored["pauses"]["total_ns"])}))
