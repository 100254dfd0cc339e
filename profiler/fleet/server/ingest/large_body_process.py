"""A process with low priority that reads large and expensive request bodies, one at a time.

The server's threads share one interpreter. A thread that parses 100 MiB takes half of its time from all others, and
each of their system calls waits for the GIL. So another process parses such bodies, and returns rows with a separate
stack cache. It starts with the first such body, and ends when its input is closed. After a large body it pauses,
because parsing occupies the caches and the memory bandwidth regardless of its priority. The pause depends on its
processor time only, not on time in which other processes kept the processor.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pyprof.errors import FormatError, PyprofError
from pyprof.fleet.server.ingest.foreign_pushes import ForeignPush
from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows, rows_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache, TenantFrameCaches
from pyprof.fleet.wire.segment_names import SegmentName

_READER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyprof.fleet.server.ingest.large_body_process import read_all; read_all()"
)
_AFTER_OTHERS = 19
"""Nice value of the process that reads large bodies, relative to that of the server."""
_REST = 3
"""Length of the pause after a large body, as a multiple of the processor time for reading it."""
_MAX_MEMORY = 1 << 28
"""Resident size in bytes of the process that reads large bodies, above which a new process replaces it."""
_Found = TypeVar("_Found")
_known = TenantFrameCaches()
"""Caches of the frames in the bodies that this process has read, for each tenant."""


def segment(tenant: str, name: SegmentName, data: bytes, most: int, lends: bool) -> SegmentRows:
    """Read the rows of a received segment (see rows_of()). This function runs in the process for large bodies.

    Raises:
        FormatError: The segment is broken or too large.
    """
    return rows_of(tenant, name, data, StoredStackCache(_known.get_cache(tenant)), most, lends=lends)


def pushed(tenant: str, push: ForeignPush, now_ns: int, most: int) -> list[tuple[SegmentRows, bytes]]:
    """Read the rows and the encoded segments of another project's push (ForeignPush.segments()). This function runs in
    the process for large bodies.

    Raises:
        FormatError: The push is broken or too large.
    """
    known = _known.get_cache(tenant)
    return [(rows_of(tenant, name, data, StoredStackCache(known)), data) for name, data in push.segments(now_ns, most)]


class LargeBodies:
    """A process that reads large request bodies. One thread uses it; other threads may only call close()."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, closed: threading.Event | None = None) -> None:
        """Create the server's side of the process that reads large bodies. The process starts with the first call().

        Args:
            clock: Function that returns the time in seconds.
            closed: Event that ends a pause early.
        """
        self._reader: subprocess.Popen[bytes] | None = None
        self._clock, self._rested_at = clock, 0.0
        self._closed = closed or threading.Event()

    def call(self, is_large: bool, function: Callable[..., _Found], *arguments: object) -> _Found:
        """Call a function in the process that reads large bodies, after the pause that follows a large body.

        Raises:
            PyprofError: The function raised it.
            FormatError: The process has ended.
        """
        if self._closed.wait(max(self._rested_at - self._clock(), 0)):
            raise FormatError("body", 0, "nobody reads it any more")
        if self._reader is not None and self._reader.poll() is not None:
            self._end()
        began = self._clock()
        try:
            answer, spent_s = self._asked(pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL))
        except (OSError, EOFError, pickle.UnpicklingError):
            self._end()
            answer = FormatError("body", 0, "the process that reads it has ended: it may need too much memory")
            spent_s = self._clock() - began  # of an ended process only this is known
        self._rested_at = self._clock() + _REST * is_large * spent_s
        if isinstance(answer, PyprofError):
            raise answer
        return cast(_Found, answer)

    def _asked(self, question: bytes) -> Any:
        reader = self._reader
        if reader is None:
            command = [sys.executable, "-c", _READER, json.dumps(sys.path)]
            pipe = subprocess.PIPE
            reader = subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0)  # Ctrl-C is for the server
            self._reader = reader
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(question)
        reader.stdin.flush()
        answer = pickle.load(reader.stdout)  # noqa: S301 - from our own process
        if _memory_of(reader.pid) > _MAX_MEMORY:
            self._end()
        return answer

    def close(self) -> None:
        """End the process that reads large bodies. Any thread may call this."""
        self._closed.set()
        self._end()

    def _end(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.kill()
            with reader:  # this closes its pipes
                pass


def _memory_of(pid: int) -> int:
    """Return the resident size of a process in bytes, 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def read_all() -> None:
    """Execute function calls that are pickled on standard input, and write their results to standard output. This is
    the main function of the process for large bodies.
    """
    os.nice(_AFTER_OTHERS)
    questions, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    while questions.peek(1):
        began_s = time.process_time()
        function, arguments = pickle.load(questions)  # noqa: S301 - from our own process
        try:
            found = function(*arguments)
        except PyprofError as error:
            found = error
        pickle.dump((found, time.process_time() - began_s), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
        del function, arguments, found
