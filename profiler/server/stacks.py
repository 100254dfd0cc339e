"""Stacks that the server has read of a tenant, each by a number. A segment states digests of its stacks: of those that
are known neither names nor calls are read again.

All of it is a memory that may be lost: what is not known is read from the segment. A tenant that states a digest which
is not its stack's gets another of its own stacks.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.importers.builder import ReadFrame
from pyprof.records import dataclass

MOST_BYTES = 1 << 28
"""Of all tenants' stacks, as estimated here."""
_STACK, _TEXT, _FRAME = 400, 150, 700
"""Bytes that one needs beside its frames, or letters."""
_MOST_ADOPTED = 4_000
"""Frames that are taken over with the stacks of one body: of more none are, for all other bodies wait meanwhile."""
_ROOM = 1024
_AT_ONCE, _BETWEEN_S = 100, 0.002
NOBODY = -1
_Kind = TypeVar("_Kind", bound=np.generic)


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What a stack says beside its frames. leaf: path and build-id of the file that it was sampled in; None: in none.
    bare: that function has no name. cut: the file at which it was cut off.
    """

    leaf: tuple[str, str] | None = None
    bare: bool = False
    cut: tuple[str, str] | None = None

    @property
    def letters(self) -> int:
        return sum(len(text) for build in (self.leaf, self.cut) for text in build or ())


class ShownFrame(NamedTuple):
    """What stacks say of a frame. number: of its text. piece: its text with its length, see piece_of(). build: path and
    build-id of its file. bare: its function has no name. is_cut: it says that the stack was cut here.
    """

    number: int
    piece: bytes
    letters: int
    build: tuple[str, str] | None
    bare: bool
    is_marker: bool
    is_cut: bool


def piece_of(text: str) -> bytes:
    """No two lists of texts are the same pieces joined."""
    data = text.encode("utf-8", "replace")
    return len(data).to_bytes(4, "little") + data


class _ReadFrames(dict[Hashable, ReadFrame]):
    """Builder.read. memory: bytes that it needs, an estimate."""

    memory = 0

    def __setitem__(self, key: Hashable, made: ReadFrame) -> None:
        self.memory += _FRAME + made.letters
        super().__setitem__(key, made)


class KnownFrames:
    """Of the segments that a book knows. read: see Builder. shown: by their digests. texts: by their numbers."""

    def __init__(self) -> None:
        self.read = _ReadFrames()
        self.shown: dict[bytes, ShownFrame] = {}
        self.texts: list[str] = []
        self._number_of: dict[str, int] = {}
        self._memory = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        """What a book needs that adopts another's stacks."""
        return {"texts": self.texts, "read": dict(self.read) if len(self.read) <= _MOST_ADOPTED else {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.texts, self.read = state["texts"], state["read"]

    @property
    def memory(self) -> int:
        """Bytes that they need, an estimate."""
        return self._memory + self.read.memory

    def text(self, text: str) -> int:
        """Its number."""
        number = self._number_of.get(text)
        if number is None:
            with self._lock:
                number = self._number_of.get(text)
                if number is None:
                    number = len(self.texts)
                    self.texts.append(text)
                    self._number_of[text] = number  # last: others look here without the lock
                    self._memory += _TEXT + len(text)
        return number

    def show(
        self, digest: bytes, text: str, build: tuple[str, str] | None, bare: bool, is_marker: bool, is_cut: bool
    ) -> ShownFrame:
        """A frame, known by its digest from then on."""
        shown = ShownFrame(self.text(text), piece_of(text), len(text), build, bare, is_marker, is_cut)
        with self._lock:
            self._memory += _FRAME + len(shown.piece)
        self.shown[digest] = shown
        return shown

    def adopt(self, other: KnownFrames) -> None:
        """What it has read."""
        for key, made in other.read.items():
            if key not in self.read:
                self.read[key] = made


class StackBook:
    """by_digest: ~number of stacks: below 0, unlike nodes of a tree. halves: (stacks, 2), of their hashes. leaf, cut:
    (stacks,) numbers of builds, NOBODY for none. bare: (stacks,). letters: (stacks,) of their texts. builds: paths and
    build-ids. Columns are longer than there are stacks. known: their frames, and others of their segments.
    """

    def __init__(self) -> None:
        self.by_digest: dict[bytes, int] = {}
        self.builds: list[tuple[str, str]] = []
        self.halves: npt.NDArray[np.uint64] = np.zeros((_ROOM, 2), np.uint64)
        self.leaf: npt.NDArray[np.int32] = np.full(_ROOM, NOBODY, np.int32)
        self.cut: npt.NDArray[np.int32] = np.full(_ROOM, NOBODY, np.int32)
        self.bare: npt.NDArray[np.bool_] = np.zeros(_ROOM, np.bool_)
        self.letters: npt.NDArray[np.int64] = np.zeros(_ROOM, np.int64)
        self.known = KnownFrames()
        self._memory = 0
        self._by_hash: dict[tuple[int, int], int] = {}
        self._build_of: dict[tuple[str, str], int] = {}
        self._frames: list[bytes] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def memory(self) -> int:
        """Bytes that it needs, an estimate."""
        return self._memory + self.known.memory

    def number(self, found: tuple[int, int], frames: Sequence[ShownFrame], facts: StackFacts) -> int:
        """Of a stack. found: its hash. frames: outermost first."""
        number = self._by_hash.get(found)
        if number is None:
            with self._lock:
                letters = sum([each.letters for each in frames])
                number = self._add(found, [each.number for each in frames], letters, facts)
        return number

    def adopted(self, other: StackBook, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Stacks of another book, by their numbers there: their numbers here. Those that have digests are known by
        them. From time to time others get the interpreter.
        """
        found, place = np.unique(wanted, return_inverse=True)
        numbers: dict[int, int] = {}
        for done, at in enumerate(found.tolist(), 1):
            first, second = other.halves[at].tolist()
            number = self._by_hash.get((first, second))
            if number is None:
                facts = StackFacts(other.build(other.leaf[at]), bool(other.bare[at]), other.build(other.cut[at]))
                with self._lock:
                    calls = [self.known.text(text) for text in other.frames(at)]
                    number = self._add((first, second), calls, int(other.letters[at]), facts)
            numbers[at] = number
            if done % _AT_ONCE == 0:
                time.sleep(_BETWEEN_S)
        self.by_digest.update((digest, ~numbers[~at]) for digest, at in other.by_digest.items() if ~at in numbers)
        self.known.adopt(other.known)
        return np.array(list(numbers.values()), np.int64)[place.reshape(-1)]

    def build(self, number: int) -> tuple[str, str] | None:
        return None if number == NOBODY else self.builds[number]

    def _add(self, found: tuple[int, int], calls: Sequence[int], letters: int, facts: StackFacts) -> int:
        """calls: numbers of its frames' texts. Under the lock."""
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
        self._frames.append(array("i", calls).tobytes())
        self._memory += _STACK + 4 * len(calls)
        self._by_hash[found] = number
        return number

    def _build(self, build: tuple[str, str] | None) -> int:
        if build is None:
            return NOBODY
        number = self._build_of.setdefault(build, len(self.builds))
        if number == len(self.builds):
            self.builds.append(build)
            self._memory += _TEXT + sum(map(len, build))
        return number

    def frames(self, number: int) -> list[str]:
        """Outermost first."""
        return [self.known.texts[at] for at in self.calls(number).tolist()]

    def calls(self, number: int) -> npt.NDArray[np.int32]:
        """(calls,) numbers of its frames' texts, outermost first."""
        return np.frombuffer(self._frames[number], np.int32)

    def text(self, number: int) -> str:
        return self.known.texts[number]


def _longer(column: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    found: npt.NDArray[_Kind] = np.concatenate((column, np.zeros_like(column)))
    return found


class StatedStacks(dict[bytes, int]):
    """What the reader of a segment knows (Builder.by_digest): the book's stacks. Its items are nodes of those that the
    reader has worked out itself.
    """

    def __init__(self, book: StackBook) -> None:
        super().__init__()
        self.get = book.by_digest.get  # type: ignore[method-assign]  # of 400 stacks: no call of Python's


class StackBooks:
    """A book for each tenant. When they are too large all begin anew."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._books: dict[str, StackBook] = {}
        self._lock = threading.Lock()

    def of(self, tenant: str) -> StackBook:
        with self._lock:
            if sum(book.memory for book in self._books.values()) > self._most:
                self._books.clear()
            book = self._books.get(tenant)
            if book is None:
                book = self._books[tenant] = StackBook()
            return book
