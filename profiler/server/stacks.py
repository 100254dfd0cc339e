"""Stacks that the server has read of a tenant, each by a number. A segment states digests of its stacks: of those that
are known neither names nor calls are read again.

All of it is a memory that may be lost: what is not known is read from the segment. A tenant that states a digest which
is not its stack's gets another of its own stacks.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.importers.builder import ReadFrame
from pyprof.records import dataclass
from pyprof.server.known_frames import KnownFrames, ShownFrame, lendable

MOST_BYTES = 1 << 28
"""Of all tenants' stacks, as estimated here."""
_STACK, _BUILD = 400, 150
"""Bytes that one needs beside its frames, or letters."""
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


class StackBook:
    """by_digest: ~number of stacks: below 0, unlike what a Builder gives them. halves: (stacks, 2), of their hashes.
    leaf, cut: (stacks,) numbers of builds, NOBODY for none. bare: (stacks,). letters: (stacks,) of their texts. builds:
    paths and build-ids. Columns are longer than there are stacks. known: their frames, and others of their segments.
    lent: frames that who adopts its stacks does not know.
    """

    def __init__(self, known: KnownFrames | None = None) -> None:
        """known: of the tenant's segments before; it learns those of this book."""
        self.by_digest: dict[bytes, int] = {}
        self.builds: list[tuple[str, str]] = []
        self.halves: npt.NDArray[np.uint64] = np.zeros((_ROOM, 2), np.uint64)
        self.leaf: npt.NDArray[np.int32] = np.full(_ROOM, NOBODY, np.int32)
        self.cut: npt.NDArray[np.int32] = np.full(_ROOM, NOBODY, np.int32)
        self.bare: npt.NDArray[np.bool_] = np.zeros(_ROOM, np.bool_)
        self.letters: npt.NDArray[np.int64] = np.zeros(_ROOM, np.int64)
        self.known = KnownFrames() if known is None else known
        self.lent: Mapping[Hashable, ReadFrame] = {}
        self._memory = 0
        self._by_hash: dict[tuple[int, int], int] = {}
        self._build_of: dict[tuple[str, str], int] = {}
        self._frames: list[bytes] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """What adopted() needs: of the frames only those of its stacks, and those that are lent."""
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
        """Bytes that it needs, an estimate."""
        return self._memory + self.known.memory

    def number(self, found: tuple[int, int], frames: Sequence[ShownFrame], facts: StackFacts) -> int:
        """Of a stack. found: its hash. frames: outermost first."""
        number = self._by_hash.get(found)
        if number is None:
            with self._lock:
                calls = array("i", [each.number for each in frames]).tobytes()
                number = self._add(found, calls, sum([each.letters for each in frames]), facts)
        return number

    def adopted(self, other: StackBook, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Stacks of another book, by their numbers there: their numbers here. Those that have digests are known by
        them. From time to time others get the interpreter.
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
        self.known.adopt(other.lent)
        return np.array(list(numbers.values()), np.int64)[place.reshape(-1)]

    def build(self, number: int) -> tuple[str, str] | None:
        return None if number == NOBODY else self.builds[number]

    def _add(self, found: tuple[int, int], calls: bytes, letters: int, facts: StackFacts) -> int:
        """calls: numbers of its frames' texts, int32. Under the lock."""
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
        """Outermost first."""
        return [self.known.texts[at] for at in self.calls(number).tolist()]

    def calls(self, number: int) -> npt.NDArray[np.int32]:
        """(calls,) numbers of its frames' texts, outermost first."""
        return np.frombuffer(self._frames[number], np.int32)

    def text(self, number: int) -> str:
        return self.known.texts[number]


class _TextsHere(dict[int, int]):
    """Numbers of texts by their numbers in another book."""

    def __init__(self, there: Sequence[str], here: KnownFrames) -> None:
        super().__init__()
        self._there, self._here = there, here

    def __missing__(self, number: int) -> int:
        found = self[number] = self._here.text(self._there[number])
        return found


def _longer(column: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    found: npt.NDArray[_Kind] = np.concatenate((column, np.zeros_like(column)))
    return found


class StatedStacks(dict[bytes, int]):
    """What the reader of a segment knows (Builder.by_digest): the book's stacks. Its items are those that the
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
