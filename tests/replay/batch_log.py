"""A log of a collector's batches, and a collector that replays it.

A log has what a collector yields: batches, images, threads. It is a zip file with this layout (arrays as .npy without
pickle, the rest JSON):

    log.json                 version; arch, count of batches; statistics at the start and at the end; threads; address
                             spaces (see _space); whatever else the caller adds ("extra")
    batch/N/FIELD.npy        a column of batch N, or of its stack slab (data, base, offset, size)
    batch/N/more.json        parts of batch N that are not columns: spaces, pieces, chains, kernel_stacks, unknown,
                             followed, stopped, source_id, referred; the context of waits is not saved
    memory/SPACE/PAGE        the bytes of one page of a target's memory that was read through AddressSpace.read

The caller adds the needed parts of module files (tests/replay/reduce.py).

The replay yields all of it again in the same order. It needs nothing of the target. The log has the pages of memory
that were read, and the files are next to the log.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import BUCKETS, Collector, CollectorStats, Feedback, Pauses
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import field_names, replace
from pyprof.model.address_space import AddressSpace, Module, ReadMemory
from pyprof.model.address_space import Mapping as ModuleMapping
from pyprof.model.arch import ARCHES, Arch
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.loss_reason_texts import make_note, parse_note
from pyprof.model.marker_frames import Blocked, KernelFrame
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import Piece, SampleBatch, StackSlab

VERSION = 1
PAGE = 4096
MAX_PAGES = 1 << 14
"""Maximum number of memory pages of one address space that a batch log contains. Reads of further pages are not in the
log.
"""

COLUMNS = ("kind", "time_ns", "tid", "pid", "space", "cpu", "weight", "regs", "kernel_stack", "length_ns", "started")
SLAB = ("data", "base", "offset", "size")


class LoggedCollector:
    """A collector that saves the batches that another one yields to a zip file, which is complete after finish().

    The log is for tests and for work on later stages: it contains stacks and memory of the target.
    """

    def __init__(self, collector: Collector, path: str) -> None:
        self._inner = collector
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA)
        self._first = _encode_stats(collector.stats())
        self._count = 0
        self._spaces: dict[int, AddressSpace] = {}
        self._pages: dict[int, dict[int, bytes]] = {}
        self._arch = ""
        self._closed = False
        self.extra: dict[str, Any] = {}
        """Further JSON values for log.json in a batch log."""

    @property
    def spaces(self) -> Mapping[int, AddressSpace]:
        """Every address space of a batch in the log, by identifier."""
        return self._spaces

    def batches(self) -> Iterator[SampleBatch]:
        for batch in self._inner.batches():
            if len(batch):
                batch = replace(batch, spaces={key: self._logged(space) for key, space in batch.spaces.items()})
                self._write(batch)
            yield batch

    def _logged(self, space: AddressSpace) -> AddressSpace:
        """Return the same address space with a read function that saves memory pages to the log."""
        if space.id not in self._spaces:
            pages = self._pages.setdefault(space.id, {})
            self._spaces[space.id] = replace(space, read=_noting(space.read, pages))
        return self._spaces[space.id]

    def _write(self, batch: SampleBatch) -> None:
        at = f"batch/{self._count}"
        self._count += 1
        self._arch = batch.arch.name
        stack = batch.stack.alone()
        columns = {name: getattr(batch, name) for name in COLUMNS} | {name: getattr(stack, name) for name in SLAB}
        for name, column in columns.items():
            if column is not None:
                self._zip.writestr(f"{at}/{name}.npy", _npy(column))
        more = {
            "spaces": sorted(batch.spaces),
            "unknown": sorted(batch.unknown),
            "followed": batch.followed,
            "stopped": batch.stopped,
            "referred": batch.reference_only,
            "source_id": batch.source_id,
            "kernel_stacks": batch.kernel_stacks,
            "pieces": {lane: [(p.avma, p.data.hex()) for p in pieces] for lane, pieces in batch.stack.pieces.items()},
            "chains": {lane: asdict(chain) for lane, chain in batch.chains.items()},
        }
        self._zip.writestr(f"{at}/more.json", _json(more))

    def learn(self, feedback: Feedback) -> None:
        self._inner.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self._inner.threads()

    def retire(self) -> None:
        self._inner.retire()

    def stats(self) -> CollectorStats:
        return self._inner.stats()

    def stop(self) -> None:
        self._inner.stop()

    def close(self) -> None:
        """Close the collector whose batches are saved. The log accepts memory reads until finish()."""
        self._inner.close()

    def finish(self) -> zipfile.ZipFile:
        """Write the remaining parts of the batch log and return the zip file. The caller may add to it, and must close
        it.
        """
        log = {
            "version": VERSION,
            "arch": self._arch,
            "batches": self._count,
            "first": self._first,
            "last": _encode_stats(self._inner.stats()),
            "threads": [asdict(thread) for thread in self._inner.threads()],
            "spaces": [_space(space) for space in self._spaces.values()],
            "extra": self.extra,
        }
        self._zip.writestr("log.json", _json(log))
        for space_id, pages in self._pages.items():
            for page, data in sorted(pages.items()):
                self._zip.writestr(f"memory/{space_id}/{page:x}", data)
        return self._zip


def _noting(read: ReadMemory, pages: dict[int, bytes]) -> ReadMemory:
    """Return a function that reads memory and saves each page as it was at its first read."""

    def noted(avma: int, size: int) -> bytes:
        for page in range(avma // PAGE, (avma + max(size, 1) - 1) // PAGE + 1):
            if page not in pages and len(pages) < MAX_PAGES:
                pages[page] = read(page * PAGE, PAGE)
        return read(avma, size)

    return noted


def _space(space: AddressSpace) -> dict[str, Any]:
    return {
        "id": space.id,
        "pid": space.pid,
        "generation": space.generation,
        "complete": space.complete,
        "mappings": [asdict(mapping) for mapping in space.mappings],
    }


def _encode_stats(stats: CollectorStats) -> dict[str, Any]:
    """Return collector statistics for JSON, with the pauses as {bucket: count} and their sum."""
    pauses = stats.pauses
    buckets = np.flatnonzero(pauses.counts).tolist()
    return asdict(replace(stats, pauses=type(pauses)())) | {
        "notes": [note.to_json() for note in stats.notes],
        "pauses": {"counts": {at: int(pauses.counts[at]) for at in buckets}, "total_ns": pauses.total_ns},
    }


def _npy(column: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, column, allow_pickle=False)
    return out.getvalue()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


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
            reference_only=more.get("referred", False),
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
        mappings = tuple(ModuleMapping(**mapping) for mapping in entry["mappings"])
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
        return _decode_stats(self._log["last" if self._at == self._log["batches"] else "first"])

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


def _decode_stats(stored: dict[str, Any]) -> CollectorStats:
    """Convert saved collector statistics. Unknown fields are dropped, and missing ones have their defaults."""
    counts = np.zeros(BUCKETS, np.int64)
    for bucket, count in stored["pauses"]["counts"].items():
        counts[int(bucket)] = count
    known = set(field_names(CollectorStats))
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in stored.items() if key in known
    }
    notes = tuple(
        make_note("older_sentence", text=each) if isinstance(each, str) else parse_note(**each)
        for each in stored["notes"]
    )
    pauses = Pauses(counts, stored["pauses"]["total_ns"])
    return CollectorStats(**(plain | {"notes": notes, "pauses": pauses}))
