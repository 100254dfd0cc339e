"""Interpreter symbols of object files: the sampler requests them, a thread of the worker reads them.

The sampler waits for the response, because it decides how a process is sampled. So a separate thread of the worker
serves a separate channel, even while the worker unwinds or resolves names. The request holds the mappings of a process
and a descriptor of its memory. The response holds only names and numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from pyprof.collectors.linux.procmap_query import make_guarded_reader
from pyprof.interpreters.detection_symbols import MAX_SYMBOLS, FoundSymbols, Symbol, Wanted, read_symbols
from pyprof.model.address_space import AddressSpace, Mapping, Module, ProgramImage
from pyprof.objfile.untrusted_file_access import Opener
from pyprof.problem_counters import Diagnostics
from pyprof.session.worker.file_broker import KnownProcess
from pyprof.session.worker.message_channel import Channel, Closed, Part, Received
from pyprof.session.worker.message_codec import MEMORY
from pyprof.session.worker.response_codec import ResponseRefused

PATIENCE_S = 10.0
_WAKE_S = 0.05
"""Time in seconds between two calls of wake() while the sampler waits for interpreter symbols."""
LATE = "interpreter_search_timeout"
_NOTHING = FoundSymbols()


class InterpreterSymbolClient:
    """The sampler's client for interpreter symbols of files (implements interpreters.detection_symbols.ReadSymbols)."""

    def __init__(
        self,
        channel: Channel,
        notify: Callable[[KnownProcess], None],
        diagnostics: Diagnostics,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the sampler's client for interpreter symbols.

        Args:
            channel: Channel to the thread of the worker.
            notify: Tells the file broker about a process, before the worker can request files of the process.
            diagnostics: Counts requests that time out.
            wake: Called repeatedly while the client waits.
        """
        self._wake = wake
        self._notify = notify
        self._channel = channel
        self._diagnostics = diagnostics
        self._number = 0

    def __call__(self, space: AddressSpace, modules: Sequence[Module], wanted: Wanted) -> Sequence[FoundSymbols | None]:
        """Return the interpreter symbols that the worker reads of each module.

        A request that times out counts as nothing found, and is not repeated. If the worker has ended or sends an
        invalid response, the result is empty; the recording then ends for the same reason.
        """
        self._number += 1
        try:
            self._send(space, modules, wanted)
            return self._answer(len(modules))
        except TimeoutError:
            self._diagnostics.count(LATE)
            return [_NOTHING] * len(modules)
        except (Closed, ResponseRefused):
            self._channel.close()
            return []

    def _send(self, space: AddressSpace, modules: Sequence[Module], wanted: Wanted) -> None:
        mappings = [tuple(getattr(mapping, name) for name in Mapping.__slots__) for mapping in space.mappings]
        contested = space.image.contested if space.image is not None else []
        starts = [module.start for module in modules]
        question = self._number, space.pid, space.root, mappings, contested, starts, tuple(wanted)
        fds: list[int] = []
        with contextlib.suppress(OSError):  # without access to its memory, a file can still be identified by its inode
            fds += (Opener().open_memory(space.pid, what) for what in MEMORY)
        self._notify(KnownProcess(space.pid, space.root))
        try:
            self._channel.send([pickle.dumps(question)], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _answer(self, most: int) -> list[FoundSymbols | None]:
        """Wait for the worker's response to the last request for symbols, and ignore responses to earlier ones.

        Raises:
            TimeoutError: No response within PATIENCE_S.
            Closed: The worker has ended.
            ResponseRefused: The response is invalid.
        """
        until = time.monotonic() + PATIENCE_S
        while (left_s := until - time.monotonic()) > 0:
            self._wake()
            received = self._channel.receive(min(left_s, _WAKE_S))
            if received is None:
                continue
            for fd in received.fds:
                os.close(fd)
            number, found = unpacked(received.parts, most)
            if number == self._number:
                return found
        raise TimeoutError


def packed(number: int, found: Sequence[FoundSymbols | None]) -> list[Part]:
    each = [
        None if one is None else [[(name.decode("latin-1"), *at) for name, *at in one.symbols], one.section]
        for one in found
    ]
    return [json.dumps((number, each)).encode()]


def unpacked(parts: Sequence[Part], max_modules: int) -> tuple[int, list[FoundSymbols | None]]:
    """Decode the worker's response with interpreter symbols.

    Args:
        parts: The parts of the message.
        max_modules: Maximum number of modules.

    Returns:
        (number of the request, symbols of each module).

    Raises:
        ResponseRefused: The response is invalid.
    """
    try:
        (part,) = parts
        number, each = json.loads(bytes(part))
        if type(number) is not int or len(each) > max_modules:
            raise ResponseRefused("a response to no request")
        return number, [None if one is None else _found(*one) for one in each]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ResponseRefused(str(error)) from None


def _found(symbols: Sequence[tuple[str, int, int]], section: tuple[int, int] | None) -> FoundSymbols:
    if len(symbols) > MAX_SYMBOLS:
        raise ResponseRefused("more symbols than were asked for")
    made = tuple(Symbol(name.encode("latin-1"), _word(avma), _word(size)) for name, avma, size in symbols)
    if section is None:
        return FoundSymbols(made)
    avma, size = section
    return FoundSymbols(made, (_word(avma), _word(size)))


def _word(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ResponseRefused("no address")
    return value


def answer_questions(channel: Channel, then: Callable[[], None]) -> None:
    """Start the thread of the worker that answers the sampler's requests for interpreter symbols. The worker must be
    confined by then.

    Args:
        channel: Channel to the sampler.
        then: Called in the thread after the sampler has closed the channel.
    """
    threading.Thread(target=_serve, args=(channel, then), daemon=True, name="file symbols").start()


def _serve(channel: Channel, then: Callable[[], None]) -> None:
    try:
        with contextlib.suppress(Closed):
            while (received := channel.receive()) is not None:
                channel.send(_answered(received))
    finally:
        channel.close()
        then()


def _answered(received: Received) -> list[Part]:
    try:
        number, pid, root, mappings, contested, starts, wanted = pickle.loads(received.parts[0])  # noqa: S301 - from our own process
        image = ProgramImage(contested=contested)
        places = tuple(Mapping(*each) for each in mappings)
        read = make_guarded_reader(partial(_read, received.fds, image), partial(_maps, received.fds), places)
        space = AddressSpace(0, pid, 0, places, read, root, image=image)
        by_start = {module.start: module for module in space.modules}
        modules = [by_start[start] for start in starts]
        from pyprof.objfile.mapped_object_files import ImageStore  # the worker has loaded it already

        return packed(number, read_symbols(ImageStore(Diagnostics()), space, modules, Wanted(*wanted)))
    finally:
        for fd in received.fds:
            os.close(fd)


def _maps(fds: Sequence[int]) -> int:
    """Return a duplicate of the descriptor of /proc/PID/maps that the sampler has sent with its request.

    Raises:
        OSError: The sampler could not open it.
    """
    if len(fds) < len(MEMORY):
        raise ProcessLookupError
    return os.dup(fds[1])


def _read(fds: Sequence[int], image: ProgramImage, avma: int, size: int) -> bytes:
    if not fds or size <= 0 or avma < 0 or image.is_contested(avma):
        return b""
    try:
        return os.pread(fds[0], size, avma)
    except (OSError, OverflowError):
        return b""
