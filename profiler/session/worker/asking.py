"""How the worker asks the keeper: an Opener whose answers come by a channel. So does a profile go to its sink."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyprof.exporters.base import Journal, JournalBeginning, JournalPart
from pyprof.objfile.foreign_path import Rights
from pyprof.objfile.opener import Opener
from pyprof.session.worker import answers
from pyprof.session.worker.answers import AskFailed, WorkerFailed
from pyprof.session.worker.channel import Channel, Closed
from pyprof.session.worker.channel import Part as Bytes
from pyprof.session.worker.hurry import exchange
from pyprof.session.worker.keeper import plain, rights_of

_GONE = "the process that opens files and writes outputs has ended"


class AskingOpener(Opener):
    """Owns its end of the channel. Several threads may ask."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asking = threading.Lock()

    def _ask(
        self, *question: object, parts: Sequence[Bytes] = (), sent: Callable[[], None] = lambda: None
    ) -> tuple[object, int]:
        """(value, descriptor or -1). sent: is called before the answer comes. Raises OSError, and what sinks raise."""
        try:
            with self._asking, exchange():
                self._channel.send([json.dumps(question).encode(), *parts])
                sent()
                received = self._channel.receive()
        except Closed:
            raise OSError(errno.EPIPE, _GONE) from None
        assert received is not None  # without a time limit it waits
        match json.loads(bytes(received.parts[0])):
            case ["error", int(number)]:
                raise OSError(number, os.strerror(number))
            case ["failed", str(kind), str(message), str(hint), str(trace)]:
                raise AskFailed(0, kind, message, hint, trace).error
            case ["is", value]:
                return value, received.fds[0] if received.fds else -1
        raise WorkerFailed("an answer of no known kind")

    def _file(self, *question: object) -> int:
        return self._ask(*question)[1]

    def below(self, root: str, name: str, rights: Rights | None, follow: bool) -> int:
        return self._file("below", root, name, plain(rights), follow)

    def mapped(self, pid: int, start: int, end: int) -> int:
        return self._file("mapped", pid, start, end)

    def program(self, pid: int) -> int:
        return self._file("program", pid)

    def named(self, path: str) -> int:
        return self._file("named", path)

    def regular(self, path: str) -> int:
        return self._file("regular", path)

    def fetched(self, build_id: str) -> int:
        return self._file("fetched", build_id)

    def scratch(self) -> int:
        return self._file("scratch")

    def about(self, pid: int, what: str) -> bytes:
        return str(self._ask("about", pid, what)[0]).encode("latin-1")

    def memory(self, pid: int, what: str) -> int:
        return self._file("memory", pid, what)

    def root(self, root: str) -> tuple[bool, Rights | None]:
        match self._ask("root", root)[0]:
            case [bool(ours), rights]:
                return ours, rights_of(rights)
        raise WorkerFailed("an answer of no known kind")

    def kernel_symbols(self) -> int:
        return self._file("kernel_symbols")

    def package(self, root: str, path: str) -> str | None:
        found = self._ask("package", root, path)[0]
        return found if isinstance(found, str) else None

    def demangled(self, names: Sequence[str]) -> list[str]:
        """See symbolize.demangle.isolated."""
        try:
            found = self._ask("demangled", list(names))[0]
        except OSError:
            found = None
        return [str(name) for name in found] if isinstance(found, list) else list(names)

    def journal(self, sink: int, beginning: JournalBeginning, number: int) -> Journal | None:
        """That of the sink of a number."""
        begun, _ = self._ask("journal", sink, number, parts=answers.packed_value(beginning))
        return _KeptJournal(self) if begun else None

    def add(self, part: JournalPart) -> None:
        """To the journal that was begun last."""
        self._ask("part", parts=answers.packed_value(part))

    def end_journal(self) -> None:
        self._ask("journal ends")

    def deliver(self, sink: int, parts: list[Bytes], delivered: int, trim: Callable[[], None]) -> None:
        """A profile, as answers.packed_value() makes it, to the sink of a number. That may need as much memory, so once
        they are sent parts are let go, and trim() is called. Raises what the sink raises.
        """

        def sent() -> None:
            parts.clear()
            trim()

        self._ask("deliver", sink, delivered, parts=parts, sent=sent)

    def close(self) -> None:
        """The keeper ends."""
        self._channel.close()


class _KeptJournal:
    """Implements Journal."""

    def __init__(self, keeper: AskingOpener) -> None:
        self._keeper = keeper

    def add(self, part: JournalPart) -> None:
        with suppress(OSError):
            self._keeper.add(part)

    def close(self) -> None:
        with suppress(OSError):
            self._keeper.end_journal()
