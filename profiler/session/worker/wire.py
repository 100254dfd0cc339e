"""Messages of the sampler's as bytes, and back in the worker.

Pickle is used in this direction only: the sampler is trusted by the worker, never the other way round (answers.py).
Arrays travel as parts of their own, without a copy on the way. Things that live longer than a message are sent once,
and by number from then on:

    address space        its mappings; its memory is read through its program image, or by asking the sampler
    program image        with descriptors of /proc/PID/mem and maps: they need no rights in the worker, and end with it
    outer part of a stack   up to megabytes, shared by the samples of a thread
    chain of an interpreter's frames   where it has a number, and was among the last ones; of one that differs from an
                                       earlier one in the innermost instruction only that is sent
    architecture         by name
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.mapped_memory import guarded
from pyprof.model.arch import ARCHES, Arch
from pyprof.model.interpreter import Chain, Run, SampleState
from pyprof.model.modules import AddressSpace, Mapping, ProgramImage, ReadMemory, StatedId
from pyprof.model.sample import OuterStack
from pyprof.objfile.opener import Opener, current
from pyprof.records import dataclass, replace
from pyprof.session.worker.channel import MOST_FDS, Part, Received
from pyprof.session.worker.keeper import KnownProcess
from pyprof.session.worker.last_chains import LastChains
from pyprof.session.worker.messages import Message, SentNews

_MOST_READ = 1 << 30
KNOWN, BY_DESCRIPTOR, BY_PID = 0, 1, 2
"""How the memory of a program image is sent: before, with descriptors, not at all: the worker asks the keeper."""
MEMORY = ("mem", "maps")
"""Of /proc/PID, in the order in which they are sent."""


@dataclass(slots=True)
class _SentImage:
    """ended, contested: has its end been sent, and how many places?"""

    image: weakref.ref[ProgramImage]
    ended: bool = False
    contested: int = 0


class _SpaceFacts(NamedTuple):
    """What is sent of an address space. image: number of its program image, 0 if it has none. memory: how that one is
    sent. files, stated: may the sampler be asked for its modules' files and their stated ids?
    """

    pid: int
    generation: int
    mappings: tuple[Mapping, ...]
    root: str
    complete: bool
    image: int
    memory: int
    files: bool
    stated: bool


class Packer:
    """The sampler's end. What it has sent is known by number as long as somebody here refers to it."""

    def __init__(self, notify: Callable[[KnownProcess], None]) -> None:
        """notify: called with each address space before its message is sent."""
        self._notify = notify
        self._numbers = itertools.count(1)
        self._images: weakref.WeakKeyDictionary[ProgramImage, int] = weakref.WeakKeyDictionary()
        self._sent: dict[int, _SentImage] = {}
        self._spaces: weakref.WeakValueDictionary[int, AddressSpace] = weakref.WeakValueDictionary()
        self._outers: weakref.WeakSet[OuterStack] = weakref.WeakSet()
        self._spaces_gone: deque[int] = deque()
        self._outers_gone: deque[int] = deque()
        self._kept: list[AddressSpace] = []
        self._chains = LastChains()

    def pack(self, message: Message) -> tuple[list[Part], list[int]]:
        """(parts, descriptors: the caller's to close)."""
        buffers: list[pickle.PickleBuffer] = []
        fds: list[int] = []
        out = io.BytesIO()
        _Pickler(out, self, fds, buffers.append).dump(message)
        return [out.getvalue(), *(buffer.raw() for buffer in buffers)], fds

    def news(self) -> SentNews:
        """What happened to things that were sent, since this was asked last."""
        ended, gone, contested = [], [], {}
        for number, sent in list(self._sent.items()):
            image = sent.image()
            if image is None:
                gone.append(number)
                del self._sent[number]
                continue
            if not image.alive and not sent.ended:
                sent.ended = True
                ended.append(number)
            if len(image.contested) != sent.contested:
                sent.contested = len(image.contested)
                contested[number] = tuple(image.contested)
        return SentNews(tuple(ended), tuple(gone), contested, _taken(self._spaces_gone), _taken(self._outers_gone))

    def space(self, number: int) -> AddressSpace | None:
        """One that was sent, while it is here."""
        return self._spaces.get(number)

    def sent_image(self, image: ProgramImage, pid: int, fds: list[int]) -> tuple[int, int]:
        """(number, KNOWN or how its memory is sent with this message)."""
        known = self._images.get(image)
        if known is not None:
            return known, KNOWN
        number = self._images[image] = next(self._numbers)
        self._sent[number] = _SentImage(weakref.ref(image))
        if len(fds) + 2 > MOST_FDS:
            return number, BY_PID
        opened: list[int] = []
        try:
            opened += (Opener().memory(pid, what) for what in MEMORY)
        except OSError:
            for fd in opened:
                os.close(fd)
            return number, BY_PID
        fds += opened
        return number, BY_DESCRIPTOR

    def sent_space(self, space: AddressSpace) -> bool:
        """Is it sent already? From now on it is."""
        if space.id in self._spaces:
            return True
        self._spaces[space.id] = space
        self._notify(KnownProcess(space.pid, space.root))
        weakref.finalize(space, self._spaces_gone.append, space.id).atexit = False
        if space.image is None:
            self._kept.append(space)  # the worker asks us for its memory
        return False

    def sent_outer(self, outer: OuterStack) -> bool:
        """Is it sent already? From now on it is."""
        if outer in self._outers:
            return True
        self._outers.add(outer)
        weakref.finalize(outer, self._outers_gone.append, outer.number).atexit = False
        return False

    def about_chain(self, chain: Chain) -> tuple[Any, ...]:
        """What Unpacker.chain takes. From now on it is sent, unless many others are sent after it."""
        number = chain.number
        if number and self._chains.find(number) is not None:
            return (number,)
        alike = bool(number and chain.trunk) and self._chains.alike(chain.trunk) is not None
        if number:
            self._chains.add(chain)
        if alike:
            return number, chain.trunk, chain.innermost.instruction
        return number, int(chain.state), *(getattr(chain, name) for name in _OF_CHAIN)


def _taken(numbers: deque[int]) -> tuple[int, ...]:
    return tuple(numbers.popleft() for _ in range(len(numbers)))


class _Pickler(pickle.Pickler):
    """Names AddressSpace, OuterStack and Chain where the worker is to call Unpacker.space, outer and chain."""

    def __init__(self, out: io.BytesIO, packer: Packer, fds: list[int], keep: Callable[[pickle.PickleBuffer], None]):
        super().__init__(out, protocol=5, buffer_callback=keep)
        self._packer = packer
        self._fds = fds

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is Run:
            return Run, (value.marker, value.frames, value.waits)
        if kind is Chain:
            return Chain, self._packer.about_chain(value)
        if kind is Mapping:
            return Mapping, tuple(getattr(value, name) for name in Mapping.__slots__)
        if kind is AddressSpace:
            return self._space(value)
        if kind is OuterStack:
            return OuterStack, (value.number,) if self._packer.sent_outer(value) else (
                value.number,
                value.avma,
                value.words,
            )
        if isinstance(value, Arch):
            return find_named_arch, (value.name, value.pac_mask)
        return NotImplemented

    def _space(self, space: AddressSpace) -> tuple[type[AddressSpace], tuple[Any, ...]]:
        if self._packer.sent_space(space):
            return AddressSpace, (space.id,)
        image, memory = 0, KNOWN
        if space.image is not None:
            image, memory = self._packer.sent_image(space.image, space.pid, self._fds)
        about = space.pid, space.generation, space.mappings, space.root, space.complete
        asked = space.files is not None, space.stated is not None
        return AddressSpace, (space.id, _SpaceFacts(*about, image, memory, *asked))


_OF_TRUNK = 2
_OF_CHAIN = tuple(name for name in Chain.__slots__ if name not in ("state", "number"))


def find_named_arch(name: str, pac_mask: int) -> Arch:
    found = next(arch for arch in ARCHES.values() if arch.name == name)
    return found if found.pac_mask == pac_mask else replace(found, pac_mask=pac_mask)


class Asking(Protocol):
    """Asks the sampler what only it can know."""

    def read(self, space: int, avma: int, size: int) -> bytes: ...

    def files(self, space: int, module: int) -> Sequence[tuple[str, bool]]: ...

    def stated(self, space: int, module: int) -> StatedId | None: ...


class Unpacker:
    """The worker's end: makes again what the sampler has, and keeps it until the sampler has it no more."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask
        self._images: dict[int, tuple[ProgramImage, tuple[int, ...]]] = {}
        self._spaces: dict[int, AddressSpace] = {}
        self._outers: dict[int, OuterStack] = {}
        self._chains = LastChains()
        self._fds: deque[int] = deque()

    def unpack(self, received: Received) -> Message:
        """Takes the descriptors."""
        self._fds.extend(received.fds)
        body, *buffers = received.parts
        found: Message = _Unpickler(io.BytesIO(body), buffers, self).load()
        while self._fds:
            os.close(self._fds.popleft())
        return found

    def update(self, news: SentNews) -> None:
        """Before what the message says otherwise is done."""
        for number, places in news.contested.items():
            if number in self._images:
                self._images[number][0].contested[:] = places
        for number in {*news.ended, *news.images}:
            if number in self._images:
                image, fds = self._images[number]
                image.alive = False
                for fd in fds:
                    os.close(fd)
                self._images[number] = image, ()
        for number in news.images:
            self._images.pop(number, None)
        for number in news.spaces:
            self._spaces.pop(number, None)
        for number in news.outers:
            self._outers.pop(number, None)

    @property
    def counts(self) -> dict[str, int]:
        """Entries of each table."""
        return {
            "images": len(self._images),
            "spaces": len(self._spaces),
            "outers": len(self._outers),
            "chains": len(self._chains),
        }

    def space(self, number: int, facts: _SpaceFacts | None = None) -> AddressSpace:
        """A new one with these facts, or the one of that number."""
        if facts is None:
            return self._spaces[number]
        if facts.image and facts.memory != KNOWN:
            self._images[facts.image] = ProgramImage(), self._opened(facts.memory, facts.pid)
        space = self._spaces[number] = AddressSpace(
            number,
            facts.pid,
            facts.generation,
            facts.mappings,
            self._memory(facts.image, facts.pid, facts.mappings) if facts.image else self._asked(number),
            facts.root,
            (lambda module: self._ask.files(number, module.start)) if facts.files else None,
            (lambda module: self._ask.stated(number, module.start)) if facts.stated else None,
            facts.complete,
            self._images[facts.image][0] if facts.image else None,
        )
        return space

    def _opened(self, memory: int, pid: int) -> tuple[int, ...]:
        """Descriptors of its memory and its mappings, () if it is gone."""
        if memory == BY_DESCRIPTOR:
            return self._fds.popleft(), self._fds.popleft()
        opened: list[int] = []
        with suppress(OSError):
            opened += (current().memory(pid, what) for what in MEMORY)
        if len(opened) < len(MEMORY):
            for fd in opened:
                os.close(fd)
            return ()
        return tuple(opened)

    def outer(self, number: int, avma: int = 0, words: npt.NDArray[np.unsignedinteger] | None = None) -> OuterStack:
        """A new one of these words, or the one of that number."""
        if words is None:
            return self._outers[number]
        own = words.copy()  # it stays for long, and all of its message would with it
        own.flags.writeable = False
        outer = self._outers[number] = OuterStack(avma, own, number)
        return outer

    def chain(self, number: int, *about: Any) -> Chain:
        """The one of that number; about: a trunk and an instruction of a new one, or its state and what it has of the
        fields _OF_CHAIN.
        """
        if not about:
            found = self._chains.find(number)
            assert found is not None
            return found
        if len(about) == _OF_TRUNK:
            trunk, instruction = about
            alike = self._chains.alike(trunk)
            assert alike is not None
            chain = alike.at(instruction, number)
        else:
            state, *values = about
            chain = Chain(state=SampleState(state), number=number, **dict(zip(_OF_CHAIN, values, strict=True)))
        if number:
            self._chains.add(chain)
        return chain

    def _memory(self, number: int, pid: int, mappings: tuple[Mapping, ...]) -> ReadMemory:
        image = self._images[number][0]

        def fds() -> tuple[int, ...]:
            return self._images[number][1] if number in self._images else ()

        def maps() -> int:
            if not fds():
                raise ProcessLookupError(pid)
            return os.dup(fds()[1])

        def read(avma: int, size: int) -> bytes:
            if not fds() or size <= 0 or avma < 0:
                return b""
            try:
                return os.pread(fds()[0], min(size, _MOST_READ), avma)
            except (OSError, OverflowError):
                return b""

        inner = guarded(read, maps, mappings)

        def uncontested(avma: int, size: int) -> bytes:
            return b"" if image.is_contested(avma) else inner(avma, size)

        return uncontested

    def _asked(self, number: int) -> ReadMemory:
        return lambda avma, size: self._ask.read(number, avma, size) if size > 0 and avma >= 0 else b""


class _Unpickler(pickle.Unpickler):
    def __init__(self, body: io.BytesIO, buffers: Sequence[memoryview], unpacker: Unpacker) -> None:
        super().__init__(body, buffers=buffers)
        self._made: dict[tuple[str, str], Callable[..., Any]] = {
            (AddressSpace.__module__, AddressSpace.__name__): unpacker.space,
            (OuterStack.__module__, OuterStack.__name__): unpacker.outer,
            (Chain.__module__, Chain.__name__): unpacker.chain,
        }

    def find_class(self, module: str, name: str) -> Any:
        return self._made.get((module, name)) or super().find_class(module, name)
