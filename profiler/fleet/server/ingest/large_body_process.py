"""A process with low priority that reads large bodies and expensive ones, one at a time.

The server's threads share one interpreter. A thread that parses 100 MiB takes half of its time from all others, and
each of their system calls waits for the GIL. The process returns rows with a separate book of stacks. It starts with
the first such body, and ends when its input is closed. It pauses after a large body, because that occupies the caches
and the memory bandwidth regardless of its priority. Time in which other processes kept the processor makes no pause
longer.
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
"""Nice value of the process that reads large bodies, relative to the server."""
_REST = 3
"""Length of the pause after reading a large body, relative to the processor time for reading it."""
_MAX_MEMORY = 1 << 28
"""Maximum resident size in bytes of the process that reads large bodies, above which another process replaces it."""
_Found = TypeVar("_Found")
_known = TenantFrameCaches()
"""Cache of the frames in the bodies that this process has read."""


def segment(tenant: str, name: SegmentName, data: bytes, most: int, lends: bool) -> SegmentRows:
    """Read the rows of a received segment in the separate process (see rows_of()).

    Raises:
        FormatError: The segment is broken or too large.
    """
    return rows_of(tenant, name, data, StoredStackCache(_known.get_cache(tenant)), most, lends=lends)


def pushed(tenant: str, push: ForeignPush, now_ns: int, most: int) -> list[tuple[SegmentRows, bytes]]:
    """Read the rows and the encoded segments of another project's push (ForeignPush.segments()).

    Raises:
        FormatError: The push is broken or too large.
    """
    known = _known.get_cache(tenant)
    return [(rows_of(tenant, name, data, StoredStackCache(known)), data) for name, data in push.segments(now_ns, most)]


class LargeBodies:
    """A process that reads large request bodies, for one thread; only close() may be called from others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, closed: threading.Event | None = None) -> None:
        """Create the caller's side of the reading process, which starts with the first call.

        Args:
            clock: Returns seconds.
            closed: Event that ends a pause early.
        """
        self._reader: subprocess.Popen[bytes] | None = None
        self._clock, self._rested_at = clock, 0.0
        self._closed = closed or threading.Event()

    def call(self, is_large: bool, function: Callable[..., _Found], *arguments: object) -> _Found:
        """Call a function in the process that reads large bodies, after its pause.

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
    """Execute calls from standard input; this is the main function of the process."""
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
