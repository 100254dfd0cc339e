"""Large bodies, and those that are much work, are read by another process, one at a time: it has an interpreter of its
own, and comes after others.

The server's threads share one interpreter: whoever reads 100 MiB in one of them takes half of it from all others, and
each of their calls of the system waits for it. What is read comes back as rows with a book of their own. The process
begins with the first such body, and ends when its input does. It rests after a large one, for that takes room in the
caches, and the memory's bandwidth, however nice it is.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pyprof.agent.segments import SegmentName
from pyprof.errors import FormatError, PyprofError
from pyprof.server.receiving import ForeignPush
from pyprof.server.rows import SegmentRows, rows_of
from pyprof.server.stacks import StackBook

_READER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyprof.server.large_bodies import read_all; read_all()"
)
_AFTER_OTHERS = 19
"""More nice than the server: it has what others leave."""
_REST = 3
"""Times as long as a large body took: before the next is read."""
_MOST_READ = 32
"""Bodies, until another process takes its place: it keeps the memory that the largest one needed."""
_Found = TypeVar("_Found")


def segment(tenant: str, name: SegmentName, data: bytes, most: int) -> SegmentRows:
    """See rows_of(). Raises FormatError."""
    return rows_of(tenant, name, data, StackBook(), most)


def pushed(tenant: str, push: ForeignPush, now_ns: int, most: int) -> list[tuple[SegmentRows, bytes]]:
    """See ForeignPush.segments(). Raises FormatError."""
    return [(rows_of(tenant, name, data, StackBook()), data) for name, data in push.segments(now_ns, most)]


class LargeBodies:
    """For one thread, close() apart. clock: seconds. closed: is waited for while it rests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, closed: threading.Event | None = None) -> None:
        self._reader: subprocess.Popen[bytes] | None = None
        self._read = 0
        self._clock, self._rested_at = clock, 0.0
        self._closed = closed or threading.Event()

    def call(self, is_large: bool, function: Callable[..., _Found], *arguments: object) -> _Found:
        """In the other process, after its rest. Raises PyprofError: that of the function, or FormatError where the
        process ends.
        """
        if self._closed.wait(max(self._rested_at - self._clock(), 0)):
            raise FormatError("body", 0, "nobody reads it any more")
        began = self._clock()
        try:
            return self._answered(function, *arguments)
        finally:
            ended = self._clock()
            self._rested_at = ended + _REST * is_large * (ended - began)

    def _answered(self, function: Callable[..., _Found], *arguments: object) -> _Found:
        if self._read >= _MOST_READ or (self._reader is not None and self._reader.poll() is not None):
            self._end()
        try:
            answer = self._asked(pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL))
        except (OSError, EOFError, pickle.UnpicklingError):
            self._end()
            raise FormatError("body", 0, "who read it has ended: it may need too much memory") from None
        if isinstance(answer, PyprofError):
            raise answer
        return cast(_Found, answer)

    def _asked(self, question: bytes) -> Any:
        reader = self._reader
        if reader is None:
            command = [sys.executable, "-c", _READER, json.dumps(sys.path)]
            pipe = subprocess.PIPE
            reader = subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0)  # Ctrl-C is for the server
            self._reader, self._read = reader, 0
        assert reader.stdin is not None
        assert reader.stdout is not None
        self._read += 1
        reader.stdin.write(question)
        reader.stdin.flush()
        return pickle.load(reader.stdout)

    def close(self) -> None:
        """From any thread."""
        self._closed.set()
        self._end()

    def _end(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.kill()
            with reader:  # its pipes are closed
                pass


def read_all() -> None:
    """What the other process does."""
    os.nice(_AFTER_OTHERS)
    questions, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    while questions.peek(1):
        function, arguments = pickle.load(questions)
        try:
            found = function(*arguments)
        except PyprofError as error:
            found = error
        pickle.dump(found, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
        del function, arguments, found
