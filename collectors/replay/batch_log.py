"""A wrapper that saves what a collector yields for replay/collector.py: batches, images, threads.

The output is a zip file with this layout (arrays as .npy without pickle, the rest JSON):

    log.json                 version; arch, count of batches; statistics at the start and at the end; threads; address
                             spaces (see _space); whatever else the caller adds ("extra")
    batch/N/FIELD.npy        a column of batch N, or of its stack slab (data, base, offset, size)
    batch/N/more.json        parts of batch N that are not columns: spaces, pieces, chains, kernel_stacks, unknown,
                             followed, stopped, source_id, referred; the context of waits is not saved
    memory/SPACE/PAGE        the bytes of one page of a target's memory that was read through AddressSpace.read

The caller adds the needed parts of module files (tests/replay/reduce.py).
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.model.modules import AddressSpace, ReadMemory
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.records import replace

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
        self._first = _stats(collector.stats())
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
            "referred": batch.referred,
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
            "last": _stats(self._inner.stats()),
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
    """Return a memory read function that also saves each page as it was at its first read."""

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


def _stats(stats: CollectorStats) -> dict[str, Any]:
    """Return collector statistics for JSON, with the pauses as {bucket: count} and their sum."""
    pauses = stats.pauses
    buckets = np.flatnonzero(pauses.counts).tolist()
    return asdict(replace(stats, pauses=type(pauses)())) | {
        "pauses": {"counts": {at: int(pauses.counts[at]) for at in buckets}, "total_ns": pauses.total_ns}
    }


def _npy(column: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, column, allow_pickle=False)
    return out.getvalue()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
