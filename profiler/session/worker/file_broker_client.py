"""Client of the file broker: an Opener in the worker that forwards each call over a channel to the file broker.

The worker also uses the client to send finished profiles to their sink.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyprof.errors import PyprofError
from pyprof.exporters.base import Journal, JournalBeginning, JournalPart
from pyprof.objfile.untrusted_file_access import Opener, Rights
from pyprof.session.worker import response_codec
from pyprof.session.worker.deadline import exchange
from pyprof.session.worker.file_broker import plain, rights_of
from pyprof.session.worker.message_channel import Channel, Closed
from pyprof.session.worker.message_channel import Part as Bytes
from pyprof.session.worker.response_codec import RequestFailed, WorkerFailed

BROKER_GONE = "the process that opens files and writes outputs has ended"
BROKER_HINT = "record again; dmesg says whether the kernel ended it because memory was short"


class FileBrokerGone(OSError):
    """The process of the file broker has ended."""


FILES_NOT_OPENED = "file_broker_gone"
"""Name of the counter of files that could not be opened because the file broker has ended."""


class FileBrokerClient(Opener):
    """Client of the file broker. It owns its end of the channel; several threads may use it.

    Attributes:
        is_refused: True if a request failed because the file broker has ended.
    """

    def __init__(self, channel: Channel) -> None:
        self.is_refused = False
        self._channel = channel
        self._asking = threading.Lock()

    def _ask(
        self, *question: object, parts: Sequence[Bytes] = (), sent: Callable[[], None] = lambda: None
    ) -> tuple[object, int]:
        """Send one request to the file broker and wait for the response.

        Args:
            question: Name of the request and its plain arguments.
            parts: Data that goes with the request.
            sent: Called between the send and the wait for the response.

        Returns:
            (value, file descriptor or -1).

        Raises:
            OSError: The file broker could not open the file, or has ended.
            Exception: What a sink raises.
        """
        try:
            with self._asking, exchange():
                self._channel.send([json.dumps(question).encode(), *parts])
                sent()
                received = self._channel.receive()
        except Closed:
            self.is_refused = True
            raise FileBrokerGone(errno.EPIPE, BROKER_GONE) from None
        assert received is not None  # receive() has no time limit here, so it returns a message
        match json.loads(bytes(received.parts[0])):
            case ["error", int(number)]:
                raise OSError(number, os.strerror(number))
            case ["failed", str(kind), str(message), str(hint), str(trace)]:
                raise RequestFailed(0, kind, message, hint, trace).error
            case ["is", value]:
                return value, received.fds[0] if received.fds else -1
        raise WorkerFailed("an answer of no known kind")

    def _file(self, *question: object) -> int:
        return self._ask(*question)[1]

    def open_below(self, root: str, name: str, rights: Rights | None, follow: bool) -> int:
        return self._file("below", root, name, plain(rights), follow)

    def open_mapped(self, pid: int, start: int, end: int) -> int:
        return self._file("mapped", pid, start, end)

    def open_program(self, pid: int) -> int:
        return self._file("program", pid)

    def open_named(self, path: str) -> int:
        return self._file("named", path)

    def open_regular(self, path: str) -> int:
        return self._file("regular", path)

    def open_downloaded(self, build_id: str) -> int:
        return self._file("fetched", build_id)

    def create_scratch_file(self) -> int:
        return self._file("scratch")

    def read_status(self, pid: int, what: str) -> bytes:
        return str(self._ask("about", pid, what)[0]).encode("latin-1")

    def open_memory(self, pid: int, what: str) -> int:
        return self._file("memory", pid, what)

    def describe_root(self, root: str) -> tuple[bool, Rights | None]:
        try:
            found = self._ask("root", root)[0]
        except FileBrokerGone:
            return False, None  # no file can be opened any more
        match found:
            case [bool(ours), rights]:
                return ours, rights_of(rights)
        raise WorkerFailed("an answer of no known kind")

    def open_kernel_symbols(self) -> int:
        return self._file("kernel_symbols")

    def find_package(self, root: str, path: str) -> str | None:
        try:
            found = self._ask("package", root, path)[0]
        except FileBrokerGone:
            return None
        return found if isinstance(found, str) else None

    def demangled(self, names: Sequence[str]) -> list[str]:
        """Demangle names in a separate process (see symbolize.demangle.demangle_isolated)."""
        try:
            found = self._ask("demangled", list(names))[0]
        except OSError:
            found = None
        return [str(name) for name in found] if isinstance(found, list) else list(names)

    def journal(self, sink: int, beginning: JournalBeginning, number: int) -> Journal | None:
        """Let the file broker open a journal for a window.

        Args:
            sink: Number of the sink.
            beginning: Header of the journal.
            number: Number of the window.

        Returns:
            The journal, or None if the sink has none.
        """
        try:
            begun, _ = self._ask("journal", sink, number, parts=response_codec.packed_value(beginning))
        except FileBrokerGone:
            return None
        return _BrokerJournal(self) if begun else None

    def add_part(self, part: JournalPart) -> None:
        """Append a part of a window to the journal that was opened last."""
        self._ask("part", parts=response_codec.packed_value(part))

    def end_journal(self) -> None:
        self._ask("journal ends")

    def deliver(self, sink: int, parts: list[Bytes], delivered: int, trim: Callable[[], None]) -> list[Bytes]:
        """Let the file broker give an encoded profile to a sink.

        The sink may need as much memory as the profile. So parts are released and trim() is called when they are sent.

        Args:
            sink: Number of the sink.
            parts: The profile, encoded by response_codec.packed_value().
            delivered: Number of the window.
            trim: Returns free memory to the kernel.

        Returns:
            The parts if the file broker had ended before, else an empty list.

        Raises:
            PyprofError: The file broker ended during the delivery.
            Exception: What the sink raises.
        """

        def sent() -> None:
            parts.clear()
            trim()

        try:
            self._ask("deliver", sink, delivered, parts=parts, sent=sent)
        except FileBrokerGone:
            if not parts:
                raise PyprofError(f"{BROKER_GONE} while it wrote: what was not written is lost", BROKER_HINT) from None
        return parts

    def close(self) -> None:
        """Close the channel to the file broker. The file broker then ends."""
        self._channel.close()


class _BrokerJournal:
    """A journal that the file broker writes (implements Journal)."""

    def __init__(self, keeper: FileBrokerClient) -> None:
        self._keeper = keeper

    def add_part(self, part: JournalPart) -> None:
        with suppress(OSError):
            self._keeper.add_part(part)

    def close(self) -> None:
        with suppress(OSError):
            self._keeper.end_journal()
