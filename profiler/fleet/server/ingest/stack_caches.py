"""The server's caches of each tenant's frames and stacks, so that a known stack is not read again.

The windows of a service have new stacks each minute, but few new frames. A segment states digests of its stacks. Names
and calls of a stack with a known digest are not read. The caches may be dropped at any time: frames and stacks are then
read from the segments. A tenant that states a wrong digest for a stack sees another stack of the same tenant in its
place.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.importers.profile_builder import ReadFrame
from pyprof.lazy_dataclasses import dataclass

_TEXT, _FRAME = 150, 700
"""Estimated size in bytes of a cached text and of a cached frame, without their characters."""
_MAX_ADOPTED, _MAX_LENT = 4_000, 1 << 12
"""Maximum number of frames of one request body that the server's cache copies from the process for large bodies, and
maximum size of such a frame in bytes. Other request bodies wait while frames are copied.
"""
_MAX_BYTES = 1 << 26
"""Maximum size in bytes of the cached frames in the process that reads large bodies."""


class ShownFrame(NamedTuple):
    """A frame in the form in which the stacks in the database contain it.

    Attributes:
        number: Number of its text.
        piece: Its text with the length in front (piece_of()).
        letters: Number of characters of the text.
        build: Path and build ID of the frame's object file.
        bare: True if the frame's function has no name.
        is_marker: True if the frame is a marker, which has no code.
        is_cut: True if the frame is a marker which says that the stack is truncated here.
    """

    number: int
    piece: bytes
    letters: int
    build: tuple[str, str] | None
    bare: bool
    is_marker: bool
    is_cut: bool


def piece_of(text: str) -> bytes:
    """Encode a frame's text with its length in front, so that different lists of texts have different
    concatenations.
    """
    data = text.encode("utf-8", "replace")
    return len(data).to_bytes(4, "little") + data


class _ReadFrames(dict[Hashable, ReadFrame]):
    """A cache of decoded frames. The key is what a segment states about a frame (see Builder.read). `memory` is its
    estimated size in bytes.
    """

    memory = 0

    def __setitem__(self, key: Hashable, made: ReadFrame) -> None:
        self.memory += _FRAME + made.memory
        super().__setitem__(key, made)


class FrameCache:
    """The cache of the frames in one tenant's segments.

    Attributes:
        read: Decoded frames by what segments state about them (see Builder.read).
        shown: Frames by their digests.
        texts: Texts by their numbers.
    """

    def __init__(self) -> None:
        self.read = _ReadFrames()
        self.shown: dict[bytes, ShownFrame] = {}
        self.texts: list[str] = []
        self._number_of: dict[str, int] = {}
        self._memory = 0
        self._lock = threading.Lock()

    def part(self, texts: Iterable[int]) -> FrameCache:
        """Return a new frame cache that has only the given texts, numbered from 0."""
        found = FrameCache()
        found.texts = [self.texts[number] for number in texts]
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the texts of the frame cache. Only copies that part() has made are pickled."""
        return {"texts": self.texts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def memory(self) -> int:
        """The estimated size of the frame cache in bytes."""
        return self._memory + self.read.memory

    def text(self, text: str) -> int:
        """Return the number of a frame's text in the cache. A new text is added."""
        number = self._number_of.get(text)
        if number is None:
            with self._lock:
                number = self._number_of.get(text)
                if number is None:
                    number = len(self.texts)
                    self.texts.append(text)
                    self._number_of[text] = number  # this comes last, because other threads read it without the lock
                    self._memory += _TEXT + len(text)
        return number

    def show(
        self, digest: bytes, text: str, build: tuple[str, str] | None, bare: bool, is_marker: bool, is_cut: bool
    ) -> ShownFrame:
        """Return the cached frame with this digest, in the form that the database stores. A new frame is added to the
        cache.
        """
        shown = ShownFrame(self.text(text), piece_of(text), len(text), build, bare, is_marker, is_cut)
        with self._lock:
            self._memory += _FRAME + len(shown.piece)
        self.shown[digest] = shown
        return shown

    def add_missing_frames(self, lent: Mapping[Hashable, ReadFrame]) -> None:
        for key, made in lent.items():
            if key not in self.read:
                self.read[key] = made


def lendable(met: Mapping[Hashable, ReadFrame]) -> dict[Hashable, ReadFrame]:
    """Return the frames of a segment that are small enough for another process to copy them into its own cache. The
    keys are what the segment states about them.
    """
    return dict(islice(((key, made) for key, made in met.items() if made.memory <= _MAX_LENT), _MAX_ADOPTED))


class TenantFrameCaches:
    """The frame caches of all tenants, for one thread. When they become too large, all are cleared."""

    def __init__(self) -> None:
        self._of: dict[str, FrameCache] = {}

    def get_cache(self, tenant: str) -> FrameCache:
        if sum(each.memory for each in self._of.values()) > _MAX_BYTES:
            self._of.clear()
        return self._of.setdefault(tenant, FrameCache())


MAX_BYTES = 1 << 28
"""Maximum estimated size in bytes of the cached stacks of all tenants."""
_STACK, _BUILD = 400, 150
"""Estimated size in bytes of a cached stack without its frames, and of an object file's entry without its
characters.
"""
_ROOM = 1024
_AT_ONCE, _BETWEEN_S = 100, 0.002
NOBODY = -1
_Kind = TypeVar("_Kind", bound=np.generic)


@dataclass(frozen=True, slots=True)
class StackFacts:
    """The properties of a stack that the database stores in addition to its frames.

    Attributes:
        leaf: Path and build ID of the object file that contains the innermost frame, None for none.
        bare: True if the function of its leaf has no name.
        cut: Path and build ID of the file at which it was truncated, None for none.
    """

    leaf: tuple[str, str] | None = None
    bare: bool = False
    cut: tuple[str, str] | None = None

    @property
    def letters(self) -> int:
        return sum(len(text) for build in (self.leaf, self.cut) for text in build or ())


class StoredStackCache:
    """The stacks of one tenant that the server has read from segments, so that a stack with a known digest is not read
    again. The arrays may be longer than the number of stacks.

    Attributes:
        by_digest: Bitwise complement of a stack's number, by digest. It is negative, unlike the nodes of a Builder.
        halves: (stacks, 2) uint64, hash of each stack.
        leaf: (stacks,) index in `builds` of the file that contains the innermost frame, -1 for none.
        cut: (stacks,) index in `builds` of the file at which the stack was truncated, -1 for none.
        bare: (stacks,) True if the function of the leaf has no name (see StackFacts).
        letters: (stacks,) number of characters of the frames' texts.
        builds: Paths and build IDs of object files.
        known: Cache of the frames.
        lent: Frames for another cache that copies the stacks of this one.
    """

    def __init__(self, known: FrameCache | None = None) -> None:
        """Create an empty cache of the stacks of one tenant.

        Args:
            known: Cache of the tenant's frames. New frames of stacks are added to it.
        """
        self.by_digest: dict[bytes, int] = {}
        self.builds: list[tuple[str, str]] = []
        self.halves: npt.NDArray[np.uint64] = np.zeros((_ROOM, 2), np.uint64)
        self.leaf: npt.NDArray[np.int32] = np.full(_ROOM, NOBODY, np.int32)
        self.cut: npt.NDArray[np.int32] = np.full(_ROOM, NOBODY, np.int32)
        self.bare: npt.NDArray[np.bool_] = np.zeros(_ROOM, np.bool_)
        self.letters: npt.NDArray[np.int64] = np.zeros(_ROOM, np.int64)
        self.known = FrameCache() if known is None else known
        self.lent: Mapping[Hashable, ReadFrame] = {}
        self._memory = 0
        self._by_hash: dict[tuple[int, int], int] = {}
        self._build_of: dict[tuple[str, str], int] = {}
        self._frames: list[bytes] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only what adopted() of another cache needs: the frames of this cache's stacks, and the frames in
        `lent`.
        """
        calls = np.frombuffer(b"".join(self._frames), np.int32)
        used, place = np.unique(calls, return_inverse=True)
        ends = np.cumsum([len(each) for each in self._frames]).tolist()
        joined = place.astype(np.int32).tobytes()
        count = len(self._frames)
        columns = {name: getattr(self, name)[:count] for name in ("halves", "leaf", "cut", "bare", "letters")}
        return columns | {
            "by_digest": dict(self.by_digest),
            "builds": self.builds,
            "known": self.known.part(used.tolist()),
            "lent": lendable(self.lent),
            "_frames": [joined[first:end] for first, end in pairwise([0, *ends])],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def memory(self) -> int:
        """The estimated size of the stack cache in bytes."""
        return self._memory + self.known.memory

    def number(self, found: tuple[int, int], frames: Sequence[ShownFrame], facts: StackFacts) -> int:
        """Return the number of a stack in the cache. A new stack is added.

        Args:
            found: Hash of the stack.
            frames: Frames, outermost first.
        """
        number = self._by_hash.get(found)
        if number is None:
            with self._lock:
                calls = array("i", [each.number for each in frames]).tobytes()
                number = self._add(found, calls, sum([each.letters for each in frames]), facts)
        return number

    def adopted(self, other: StoredStackCache, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Copy stacks of another cache, given by their numbers in that cache. Return their numbers in this cache.

        The digests of these stacks are copied too. The function pauses regularly to let other threads run.
        """
        found, place = np.unique(wanted, return_inverse=True)
        numbers: dict[int, int] = {}
        here = _TextsHere(other.known.texts, self.known)
        for done, at in enumerate(found.tolist(), 1):
            first, second = other.halves[at].tolist()
            number = self._by_hash.get((first, second))
            if number is None:
                facts = StackFacts(other.build(other.leaf[at]), bool(other.bare[at]), other.build(other.cut[at]))
                with self._lock:
                    calls = array("i", [here[each] for each in other.calls(at).tolist()]).tobytes()
                    number = self._add((first, second), calls, int(other.letters[at]), facts)
            numbers[at] = number
            if done % _AT_ONCE == 0:
                time.sleep(_BETWEEN_S)
        self.by_digest.update((digest, ~numbers[~at]) for digest, at in other.by_digest.items() if ~at in numbers)
        self.known.add_missing_frames(other.lent)
        return np.array(list(numbers.values()), np.int64)[place.reshape(-1)]

    def build(self, number: int) -> tuple[str, str] | None:
        return None if number == NOBODY else self.builds[number]

    def _add(self, found: tuple[int, int], calls: bytes, letters: int, facts: StackFacts) -> int:
        """Add a stack to the cache. `calls` are the numbers of its frames' texts, as int32. The caller holds the
        lock.
        """
        number = self._by_hash.get(found, NOBODY)
        if number != NOBODY:
            return number
        number = len(self._frames)
        if number == len(self.bare):
            self.halves, self.leaf = _longer(self.halves), _longer(self.leaf)
            self.cut, self.bare, self.letters = _longer(self.cut), _longer(self.bare), _longer(self.letters)
        self.halves[number] = found
        self.leaf[number], self.bare[number] = self._build(facts.leaf), facts.bare
        self.cut[number] = self._build(facts.cut)
        self.letters[number] = letters
        self._frames.append(calls)
        self._memory += _STACK + len(calls)
        self._by_hash[found] = number
        return number

    def _build(self, build: tuple[str, str] | None) -> int:
        if build is None:
            return NOBODY
        number = self._build_of.setdefault(build, len(self.builds))
        if number == len(self.builds):
            self.builds.append(build)
            self._memory += _BUILD + sum(map(len, build))
        return number

    def frames(self, number: int) -> list[str]:
        """Return the texts of a cached stack's frames, outermost first."""
        return [self.known.texts[at] for at in self.calls(number).tolist()]

    def calls(self, number: int) -> npt.NDArray[np.int32]:
        """Return the numbers of the texts of a cached stack's frames, (calls,), outermost first."""
        return np.frombuffer(self._frames[number], np.int32)

    def text(self, number: int) -> str:
        return self.known.texts[number]


class _TextsHere(dict[int, int]):
    """A mapping from the number of a frame's text in another cache to its number in this one, filled on access."""

    def __init__(self, there: Sequence[str], here: FrameCache) -> None:
        super().__init__()
        self._there, self._here = there, here

    def __missing__(self, number: int) -> int:
        found = self[number] = self._here.text(self._there[number])
        return found


def _longer(column: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    found: npt.NDArray[_Kind] = np.concatenate((column, np.zeros_like(column)))
    return found


class StatedStacks(dict[bytes, int]):
    """A mapping from digest to stack for a Builder. It looks up digests that segments state in a cache, and collects
    the digests that the reader has verified.
    """

    def __init__(self, book: StoredStackCache) -> None:
        super().__init__()
        # bound directly, because it is called for each stack
        self.get = book.by_digest.get  # type: ignore[method-assign]


class TenantStackCaches:
    """The stack caches of all tenants. When they become too large, all are dropped."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self._books: dict[str, StoredStackCache] = {}
        self._lock = threading.Lock()

    def get_cache(self, tenant: str) -> StoredStackCache:
        with self._lock:
            if sum(book.memory for book in self._books.values()) > self._most:
                self._books.clear()
            book = self._books.get(tenant)
            if book is None:
                book = self._books[tenant] = StoredStackCache()
            return book
