"""Codec for the sampler's messages: the sampler encodes them as bytes, the worker decodes them.

Pickle is used in this direction only: the worker trusts the sampler, but never the reverse (response_codec.py). Arrays
travel as separate parts, without a copy. Objects that outlive a message are sent once, and then by number:

    address space    its mappings; its memory is read through its program image, or by a call to the sampler
    program image    with descriptors of /proc/PID/mem and maps, which need no rights in the worker
    outer stack      the outer part of a stack, up to megabytes, shared by the samples of a thread
    chain            interpreter frames that have a number and are in the cache; if only the innermost instruction
                     differs from an earlier chain, only that is sent
    architecture     by name
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

from pyprof.collectors.linux.procmap_query import make_guarded_reader
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace, Mapping, ProgramImage, ReadMemory, StatedId
from pyprof.model.arch import ARCHES, Arch
from pyprof.model.interpreter_frames import Chain, Run, SampleState
from pyprof.model.sample_batch import OuterStack
from pyprof.objfile.untrusted_file_access import Opener, current_opener
from pyprof.session.worker.file_broker import KnownProcess
from pyprof.session.worker.message_channel import MAX_FDS, Part, Received
from pyprof.session.worker.messages import Message, ProcessUpdate

_MAX_READ = 1 << 30
KNOWN, BY_DESCRIPTOR, BY_PID = 0, 1, 2
"""The three ways in which a message gives the worker access to a program image's memory: the worker has it already, by
file descriptors, or by pid.

With a pid, the worker requests the descriptors from the file broker.
"""
MEMORY = ("mem", "maps")
"""Names of the files of /proc/PID whose descriptors are sent to the worker, in this order."""


_OF_TRUNK = 2
_OF_CHAIN = tuple(name for name in Chain.__slots__ if name not in ("state", "number"))
_MAX_CHAINS = 1 << 13


@dataclass(slots=True)
class _SentImage:
    """The sampler's record of what it has sent to the worker about one program image.

    Attributes:
        image: The image, while the sampler uses it.
        ended: True if its end was sent.
        contested: Number of its contested ranges (see ProgramImage) that were sent.
    """

    image: weakref.ref[ProgramImage]
    ended: bool = False
    contested: int = 0


class _SpaceFacts(NamedTuple):
    """The description of an address space in a message to the worker.

    Attributes:
        pid: Pid of its process.
        generation: Counts changes of the mappings.
        mappings: Its mappings.
        root: Root folder of its file names.
        complete: False if only a part of the process's mappings was read (see AddressSpace).
        image: Number of its program image, 0 if it has none.
        memory: How the worker gets the memory of the program image: KNOWN, BY_DESCRIPTOR or BY_PID.
        files: True if the worker may ask the sampler for the files of modules.
        stated: True if the worker may ask the sampler for the stated ids of modules.
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
    """An encoder of the sampler's messages to the worker.

    Address spaces, program images, outer parts of deep stacks and chains of interpreter frames are sent once. Later
    messages refer to such an object by its number, as long as the sampler uses the object.
    """

    def __init__(self, notify: Callable[[KnownProcess], None]) -> None:
        """Create the encoder of the sampler's messages.

        Args:
            notify: Called with each address space before its message is sent.
        """
        self._notify = notify
        self._numbers = itertools.count(1)
        self._images: weakref.WeakKeyDictionary[ProgramImage, int] = weakref.WeakKeyDictionary()
        self._sent: dict[int, _SentImage] = {}
        self._spaces: weakref.WeakValueDictionary[int, AddressSpace] = weakref.WeakValueDictionary()
        self._outers: weakref.WeakSet[OuterStack] = weakref.WeakSet()
        self._spaces_gone: deque[int] = deque()
        self._outers_gone: deque[int] = deque()
        self._kept: list[AddressSpace] = []
        self._chains = SentChainCache()

    def pack(self, message: Message) -> tuple[list[Part], list[int]]:
        """Encode a message of the sampler to the worker.

        Returns:
            (parts, file descriptors that the caller must close).
        """
        buffers: list[pickle.PickleBuffer] = []
        fds: list[int] = []
        out = io.BytesIO()
        _Pickler(out, self, fds, buffers.append).dump(message)
        return [out.getvalue(), *(buffer.raw() for buffer in buffers)], fds

    def news(self) -> ProcessUpdate:
        """Return what has changed since the last call in objects that the worker has stored, such as processes that
        have ended.
        """
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
        return ProcessUpdate(tuple(ended), tuple(gone), contested, _taken(self._spaces_gone), _taken(self._outers_gone))

    def space(self, number: int) -> AddressSpace | None:
        """Return an address space that was sent to the worker, or None if this process does not use it any more."""
        return self._spaces.get(number)

    def sent_image(self, image: ProgramImage, pid: int, fds: list[int]) -> tuple[int, int]:
        """Note that a program image is sent to the worker with this message.

        Args:
            image: The image.
            pid: Pid of its process.
            fds: Descriptors of the message, to which this function adds those of the memory.

        Returns:
            (number of the image; KNOWN, BY_DESCRIPTOR or BY_PID).
        """
        known = self._images.get(image)
        if known is not None:
            return known, KNOWN
        number = self._images[image] = next(self._numbers)
        self._sent[number] = _SentImage(weakref.ref(image))
        if len(fds) + 2 > MAX_FDS:
            return number, BY_PID
        opened: list[int] = []
        try:
            opened += (Opener().open_memory(pid, what) for what in MEMORY)
        except OSError:
            for fd in opened:
                os.close(fd)
            return number, BY_PID
        fds += opened
        return number, BY_DESCRIPTOR

    def sent_space(self, space: AddressSpace) -> bool:
        """Note that an address space is being sent to the worker. Return True if the worker has it already."""
        if space.id in self._spaces:
            return True
        self._spaces[space.id] = space
        self._notify(KnownProcess(space.pid, space.root))
        weakref.finalize(space, self._spaces_gone.append, space.id).atexit = False
        if space.image is None:
            self._kept.append(space)  # the worker calls this process to read its memory
        return False

    def sent_outer(self, outer: OuterStack) -> bool:
        """Note that the outer part of a deep stack is being sent to the worker. Return True if the worker has it
        already.
        """
        if outer in self._outers:
            return True
        self._outers.add(outer)
        weakref.finalize(outer, self._outers_gone.append, outer.number).atexit = False
        return False

    def about_chain(self, chain: Chain) -> tuple[Any, ...]:
        """Return the arguments from which Unpacker.chain rebuilds an interpreter frame chain: its number alone if the
        worker has it in its cache, else its contents. Note that it was sent.
        """
        number = chain.number
        if number and self._chains.find(number) is not None:
            return (number,)
        alike = bool(number and chain.trunk) and self._chains.alike(chain.trunk) is not None
        if number:
            self._chains.add_chain(chain)
        if alike:
            return number, chain.trunk, chain.innermost.instruction
        return number, int(chain.state), *(getattr(chain, name) for name in _OF_CHAIN)


def _taken(numbers: deque[int]) -> tuple[int, ...]:
    return tuple(numbers.popleft() for _ in range(len(numbers)))


class _Pickler(pickle.Pickler):
    """A pickler of the sampler's messages to the worker, which sends large objects only once.

    The first message with an address space, an outer stack or a chain of interpreter frames contains its description
    and a number. In later messages the number stands for it, and the worker's Unpacker returns the stored object.
    """

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


def find_named_arch(name: str, pac_mask: int) -> Arch:
    found = next(arch for arch in ARCHES.values() if arch.name == name)
    return found if found.pac_mask == pac_mask else replace(found, pac_mask=pac_mask)


class SamplerCalls(Protocol):
    """The protocol of the worker's calls to the sampler."""

    def read(self, space: int, avma: int, size: int) -> bytes: ...

    def files(self, space: int, module: int) -> Sequence[tuple[str, bool]]: ...

    def stated(self, space: int, module: int) -> StatedId | None: ...


class Unpacker:
    """A decoder of the sampler's messages in the worker. It stores objects that are sent only once, until the sampler
    reports that they are no longer used.
    """

    def __init__(self, ask: SamplerCalls) -> None:
        self._ask = ask
        self._images: dict[int, tuple[ProgramImage, tuple[int, ...]]] = {}
        self._spaces: dict[int, AddressSpace] = {}
        self._outers: dict[int, OuterStack] = {}
        self._chains = SentChainCache()
        self._fds: deque[int] = deque()

    def unpack(self, received: Received) -> Message:
        """Decode a message of the sampler and close its file descriptors, or keep those of program images."""
        self._fds.extend(received.fds)
        body, *buffers = received.parts
        found: Message = _Unpickler(io.BytesIO(body), buffers, self).load()
        while self._fds:
            os.close(self._fds.popleft())
        return found

    def update(self, news: ProcessUpdate) -> None:
        """Mark or drop those stored objects about which the sampler has sent an update. The caller does this before it
        uses the rest of the message.
        """
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

    def uses_space(self, space: AddressSpace) -> bool:
        """Return True if the sampler may still send samples of an address space: it has not reported that the space is
        no longer used.
        """
        return space.id in self._spaces and not space.ended

    @property
    def counts(self) -> dict[str, int]:
        """The number of stored objects of each kind in the worker's decoder."""
        return {
            "images": len(self._images),
            "spaces": len(self._spaces),
            "outers": len(self._outers),
            "chains": len(self._chains),
        }

    def space(self, number: int, facts: _SpaceFacts | None = None) -> AddressSpace:
        """Make an address space from its description and store it, or return the stored one if there is no
        description.
        """
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
        """Return descriptors of the memory and the mappings of a program image, () if its process has ended.

        Args:
            memory: How the message gives access to the memory: KNOWN, BY_DESCRIPTOR or BY_PID.
            pid: Pid of the process.
        """
        if memory == BY_DESCRIPTOR:
            return self._fds.popleft(), self._fds.popleft()
        opened: list[int] = []
        with suppress(OSError):
            opened += (current_opener().open_memory(pid, what) for what in MEMORY)
        if len(opened) < len(MEMORY):
            for fd in opened:
                os.close(fd)
            return ()
        return tuple(opened)

    def outer(self, number: int, avma: int = 0, words: npt.NDArray[np.unsignedinteger] | None = None) -> OuterStack:
        """Make the outer part of a deep stack from its words and store it, or return the stored one if there are no
        words.
        """
        if words is None:
            return self._outers[number]
        own = words.copy()  # copied, because it stays for long and would keep the memory of its message
        own.flags.writeable = False
        outer = self._outers[number] = OuterStack(avma, own, number)
        return outer

    def chain(self, number: int, *about: Any) -> Chain:
        """Return the chain of interpreter frames that a message describes, or the cached one with this number.

        Args:
            number: Cache number, 0 if the chain is not cached.
            about: () to look it up, (trunk, instruction) to derive it from a cached chain that differs only in its
                innermost instruction, or (state, *fields) of a new chain. The fields are those of _OF_CHAIN.
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
            self._chains.add_chain(chain)
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
                return os.pread(fds()[0], min(size, _MAX_READ), avma)
            except (OSError, OverflowError):
                return b""

        inner = make_guarded_reader(read, maps, mappings)

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


class SentChainCache:
    """A cache of sent interpreter frame chains by number and by `trunk`, which drops the least recently used ones.

    Chains that differ only in their innermost instruction share a trunk.
    """

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}
        self._trunks: dict[int, Chain] = {}

    def find(self, number: int) -> Chain | None:
        """Return the cached frame chain with this number and mark it as most recently used."""
        return _found(self._chains, number)

    def alike(self, trunk: int) -> Chain | None:
        """Return a cached chain of interpreter frames with this trunk, or None. Chains with the same trunk differ at
        most in their innermost instruction.
        """
        return _found(self._trunks, trunk)

    def add_chain(self, chain: Chain) -> None:
        """Add a frame chain to the cache, and remove the least recently used one if the cache is full."""
        _keep(self._chains, chain.number, chain)
        if chain.trunk:
            _keep(self._trunks, chain.trunk, chain)

    def __len__(self) -> int:
        return len(self._chains)


def _found(chains: dict[int, Chain], number: int) -> Chain | None:
    chain = chains.pop(number, None)
    if chain is not None:
        chains[number] = chain
    return chain


def _keep(chains: dict[int, Chain], number: int, chain: Chain) -> None:
    if len(chains) >= _MAX_CHAINS:
        del chains[next(iter(chains))]
    chains[number] = chain
