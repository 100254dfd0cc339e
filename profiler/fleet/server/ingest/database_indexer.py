"""The thread that inserts segments into the database, and drops what is too old. The files remain authoritative.

Rows of new segments wait in memory if there is room. All others are read again from their files, as are segments that
the database lacks when the server starts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice

from pyprof.errors import FormatError
from pyprof.fleet.server.ingest.segment_files import SegmentFiles
from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, rows_of
from pyprof.fleet.server.ingest.stack_caches import TenantStackCaches
from pyprof.fleet.server.store.clickhouse_engine import StoreError
from pyprof.fleet.server.store.database import Store
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import dataclass

_MAX_WAITING = 4000
_MAX_AT_ONCE = 2000
_PAUSE_S, _MAX_PAUSE_S, _AFTER_FAILURE_S = 1.0, 3.0, 5.0
_FEW = 100
"""Rate in segments per second above which the server inserts less often into the database, because a few large blocks
of rows cost least.
"""
_LOOK_S = 600.0
_SAMPLE_S, _SAMPLED = 60.0, 200
"""Interval in seconds of the check whether segments in the database still have files, and the number of segments that
it draws. If one has no file, the server checks all.
"""
_FAILURE_LOG_S = 60.0
"""Minimum time between two log lines about the same database failure, in seconds."""
_DAY_S = 86_400
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for the segments of the server: maximum age in seconds (max_age) and maximum total size in bytes.
    hours_after is the age in seconds at which hourly rollups replace the rows of windows.
    """

    max_age: float
    max_bytes: int
    hours_after: float


class _PendingSegments:
    """Segments that were received and whose files are about to be written. The search for files without rows in the
    database must skip them. Thread-safe.
    """

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str]] = Counter()
        self._passed_over: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def add_rows(self, rows: SegmentRows) -> None:
        with self._lock:
            self._times[rows.tenant, rows.name.path] += 1

    def passes_over(self, tenant: str, name: SegmentName) -> bool:
        """Return True if the file of a segment is about to be written, so that the search for files without rows must
        skip it. The skip is recorded.
        """
        with self._lock:
            coming = (tenant, name.path) in self._times
            if coming:
                self._passed_over.add((tenant, name.path))
        return coming

    def drop(self, segments: Iterable[SegmentRows]) -> bool:
        """Remove segments whose files are written, or will not be. Return True if the search for files without rows has
        skipped one of them.
        """
        passed_over = False
        with self._lock:
            for each in segments:
                key = each.tenant, each.name.path
                self._times[key] -= 1
                if not self._times[key]:
                    del self._times[key]
                    passed_over |= key in self._passed_over
                    self._passed_over.discard(key)
        return passed_over


class Indexer:
    """The thread that inserts received segments into the database and drops old ones.

    Attributes:
        has_caught_up: True as soon as the database had all segment files once since the start.
    """

    def __init__(
        self,
        files: SegmentFiles,
        store: Store,
        books: TenantStackCaches,
        limits: Retention,
        say: Callable[..., None],
        count: Callable[[str], None],
    ) -> None:
        """Create the thread that inserts segments into the database, without starting it.

        Args:
            say: Function that writes a line of the log.
            count: Function that increments one of the server's metrics.
        """
        self._files, self._store, self._books, self._say, self._count = files, store, books, say, count
        self._limits = limits
        self._failure = ""
        self._failure_logged_s = -_FAILURE_LOG_S
        self._waiting: deque[SegmentRows] = deque()
        self._coming = _PendingSegments()
        self._behind = True
        self.has_caught_up = False
        self._without_file: set[tuple[str, str]] | None = None
        self._ending = threading.Event()
        self._arrived = threading.Event()
        self._lock = threading.Lock()
        self._next_look = self._next_block = 0.0
        self._next_sample = time.monotonic() + _SAMPLE_S
        self._thread = threading.Thread(target=self._run, name="pyprof index", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def expect(self, rows: SegmentRows) -> None:
        """Announce a segment whose file is about to be written, so that the search for files without rows skips the
        file.

        queue_rows() or forget() must follow. All three may be called from any thread.
        """
        self._coming.add_rows(rows)

    def queue_rows(self, rows: SegmentRows) -> None:
        """Queue the rows of a stored segment for the database, without waiting."""
        with self._lock:
            room = len(self._waiting) < _MAX_WAITING
            if room:
                self._waiting.append(rows)
        if not room:
            self.forget([rows])
            self._behind = True
        self._arrived.set()

    def forget(self, segments: Iterable[SegmentRows]) -> None:
        """Withdraw segments that were announced by expect() but not stored. If the search for files without rows has
        skipped one of their files, the search is repeated.
        """
        if self._coming.drop(segments):
            self._behind = True
            self._arrived.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def without_file(self) -> int:
        """Number of windows that have rows in the database, but no file any more."""
        return len(self._without_file or ())

    def close(self) -> None:
        """Insert the segments that still wait into the database, and stop the thread."""
        self._ending.set()
        self._arrived.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            ending = self._ending.is_set()
            try:
                if self._without_file is None:
                    self._without_file = self._find_without_file()
                elif time.monotonic() >= self._next_sample:
                    self._next_sample = time.monotonic() + _SAMPLE_S
                    self.check_files()
                self._bring_in()
                if ending:
                    return
                self._tend()
                self._failure = ""
            except Exception as error:  # noqa: BLE001 - without this thread no window would reach the database
                self._behind = True
                self._count("index_failures")
                is_expected = isinstance(error, StoreError | OSError)
                self._note_failure(str(error) if is_expected else f"{type(error).__name__}: {error}")
                if self._ending.wait(_AFTER_FAILURE_S):
                    return
            self._arrived.wait(_PAUSE_S)
            self._arrived.clear()
            self._ending.wait(max(self._next_block - time.monotonic(), 0))

    def check(self) -> None:
        """Raise StoreError if the last attempt to bring segments into the database failed."""
        if self._failure:
            raise StoreError(self._failure)

    def _note_failure(self, text: str) -> None:
        """Log a database failure if it is new or the last line about it is a minute old."""
        now = time.monotonic()
        if text != self._failure or now - self._failure_logged_s >= _FAILURE_LOG_S:
            self._failure_logged_s = now
            self._say("warning", "index failed", error=text)
        self._failure = text

    def _find_without_file(self) -> set[tuple[str, str]]:
        """Return (tenant, path) of the windows that have rows in the database, but no file any more.

        This is the case after an old backup of the files was restored. A client may send such a window again, which
        brings its file back. Its rows must not be inserted a second time.
        """
        listed = self._store.listed()
        listed.difference_update((tenant, name.path) for tenant, name, _ in self._files.all())
        ends = sorted(name.end_ns for _, path in listed if (name := SegmentName.parse(*path.split("/"))) is not None)
        if ends:
            first, last = (f"{datetime.fromtimestamp(end_ns // 10**9, UTC):{_TIME}}" for end_ns in (ends[0], ends[-1]))
            self._say("warning", "windows without a file", windows=len(listed), first=first, last=last)
        return listed

    def check_files(self) -> None:
        """Check a random sample of the segments in the database for files that were removed while the server runs. If
        one is gone, find all of them.

        Raises:
            StoreError: The database failed.
            OSError: A folder cannot be read.
        """
        known = self._without_file or set()
        sample = self._store.sample_listed(_SAMPLED)
        if any((tenant, path) not in known and not self._files.has(tenant, path) for tenant, path in sample):
            self._without_file = self._find_without_file()

    def _bring_in(self) -> None:
        """Insert all queued segments into the database as one block of rows. Segments that arrive meanwhile go into the
        next block.
        """
        left = len(self._waiting)
        while left:
            block = [self._waiting.popleft() for _ in range(min(left, _MAX_AT_ONCE))]
            left -= len(block)
            try:
                self._store.insert([each for each in block if not self._has_rows(each)])
            finally:
                self._coming.drop(block)
            self._next_block = time.monotonic() + min(max(len(block) / _FEW, _PAUSE_S), _MAX_PAUSE_S)

    def _has_rows(self, rows: SegmentRows) -> bool:
        """Return True if the rows of a segment are in the database, although its file was missing until it was received
        again.
        """
        key = rows.tenant, rows.name.path
        if self._without_file is None or key not in self._without_file:
            return False
        self._without_file.discard(key)
        return True

    def _tend(self) -> None:
        if self._behind:
            self._behind = False
            count = self.catch_up()
            self.has_caught_up = True
            if count:
                self._say("info", "files indexed", segments=count)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_S
            self.drop_old(time.time())
            self.seal(time.time())
            self._store.hours.find_due_hours(time.time_ns())
        else:
            self._store.hours.roll_next()

    def catch_up(self) -> int:
        """Insert the segment files that the database lacks, and return their number.

        Raises:
            StoreError: The database failed.
            OSError: A folder cannot be read.
        """
        for day in self._store.hours.find_inconsistent_days():
            self._drop_rows(day)
        done = 0
        missing = self._missing()
        while block := list(islice(missing, _MAX_AT_ONCE)):
            self._store.insert(block)
            done += len(block)
            if self._ending.is_set():
                break
        return done

    def _drop_rows(self, day: str) -> None:
        self._store.drop_day(day)
        if self._without_file:
            self._without_file = {key for key in self._without_file if not key[1].startswith(f"{day}/")}

    def _missing(self) -> Iterator[SegmentRows]:
        listed = self._store.listed()
        for tenant, name, _ in self._files.all():
            if (tenant, name.path) not in listed and not self._coming.passes_over(tenant, name):
                rows = self._read(tenant, name)
                if rows is not None:
                    yield rows

    def _read(self, tenant: str, name: SegmentName) -> SegmentRows | None:
        try:
            return rows_of(tenant, name, self._files.read(tenant, name), self._books.get_cache(tenant))
        except (FormatError, OSError) as error:
            self._say("warning", "segment unreadable", segment=name.path, error=str(error))
            return None

    def drop_old(self, now: float) -> int:
        """Drop whole days of segments that are too old, both files and rows, and return the number of days.

        Raises:
            StoreError: The database failed.
            OSError: A file cannot be deleted.
        """
        sizes: dict[str, int] = {}
        for _, name, size in self._files.all():
            sizes[name.day] = sizes.get(name.day, 0) + size
        oldest = _day_before(now, self._limits.max_age)
        total, dropped = sum(sizes.values()), 0
        for day in sorted(sizes):
            if day >= oldest and (total <= self._limits.max_bytes or dropped == len(sizes) - 1):
                break
            count = self._files.drop_day(day)
            self._drop_rows(day)
            total -= sizes[day]
            dropped += 1
            self._say("info", "day dropped", day=day, segments=count)
        return dropped

    def seal(self, now: float) -> None:
        """Take the next step by which hourly rollups replace the rows of windows (HourlyRollups.seal), for the oldest
        day that is due.

        Raises:
            StoreError: The database failed.
        """
        for day in self._store.hours.due_days(_day_before(now, self._limits.hours_after))[:1]:
            if self._store.hours.seal(day):
                self._say("info", "day rolled up", day=day)


def _day_before(now: float, age_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now - age_s))
