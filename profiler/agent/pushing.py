"""Segments to sinks: one thread each, from the sink's queue in the spool, oldest first. Sampling never waits for it.

The links are the only truth: a segment is sent, then its link goes. Whoever is killed between the two sends it again,
under the same name. What cannot be sent now stays in the queue, as long as the spool's limits let it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import islice

from pyprof.agent.disk import Disk
from pyprof.agent.segments import SegmentName
from pyprof.agent.spool import QUEUE, Spool
from pyprof.records import dataclass

_LOOK_S = 1.0
_FIRST_S, _MOST_S = 1.0, 300.0
_AT_ONCE = 100
"""Segments of a queue that are taken at a time."""


@dataclass(frozen=True, slots=True)
class PushTarget:
    """A [[push]] of the configuration. path: of the folder."""

    name: str
    path: str


class FolderSink:
    """A folder that is there, for instance of another machine: DAY/SERVICE/END_NS-UUID.pb.gz, as in the spool."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._disk = Disk()

    def send(self, name: SegmentName, data: bytes) -> None:
        """Raises OSError."""
        folder = self._path
        for part in (name.day, name.folder):
            if self._disk.make_folder(f"{folder}/{part}"):
                self._disk.sync_folder(folder)
            folder = f"{folder}/{part}"
        part_file = f"{folder}/.{name.name}.part"
        with suppress(FileNotFoundError):
            self._disk.unlink(part_file)
        fd = self._disk.create(part_file)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(part_file, f"{folder}/{name.name}")
        self._disk.sync_folder(folder)


class Pusher:
    """Of one sink. writing: held while the spool is used, never while something is sent. say: takes lines of the
    log.
    """

    def __init__(
        self, target: PushTarget, spool: Spool, writing: AbstractContextManager[object], say: Callable[..., None]
    ) -> None:
        self._target, self._spool, self._writing, self._say = target, spool, writing, say
        self._sink = FolderSink(target.path)
        self._ending = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"pyprof push {target.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """What is not sent stays in the queue. Does not wait: a folder of a machine that is gone may take for ever."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(self._pause()):
            try:
                self.push()
            except OSError as error:
                if not self._failures:
                    self._say("warning", "push waits", sink=self._target.name, error=error.strerror or str(error))
                self._failures += 1

    def _pause(self) -> float:
        if not self._failures:
            return _LOOK_S
        return min(_MOST_S, _FIRST_S * (1 << min(self._failures, 16))) * random.uniform(0.5, 1.0)

    def push(self) -> int:
        """Send what is in the queue; how many were sent. Raises OSError where the sink does not take one."""
        sent = 0
        while not self._ending.is_set():
            with self._writing:
                names = list(islice(self._spool.queued(self._target.name), _AT_ONCE))
            if not names:
                break
            for name in names:
                sent += self._push(name)
        return sent

    def _push(self, name: SegmentName) -> bool:
        """False where the spool has dropped it meanwhile, and counted that."""
        data = self._read(name)
        if data is not None:
            self._sink.send(name, data)
        with self._writing:
            self._spool.sent(self._target.name, name)
        if self._failures:
            self._failures = 0
            self._say("info", "push goes on", sink=self._target.name)
        return data is not None

    def _read(self, name: SegmentName) -> bytes | None:
        try:
            with open(f"{self._spool.root}/{QUEUE}/{self._target.name}/{name.path}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
