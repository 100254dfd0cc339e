"""Frames that the server has read of a tenant: as segments say them, and as stacks of the database have them.

The windows of a service have new stacks each minute, but few new frames. What is remembered here may be lost: it is
read from the segment then.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from pyprof.importers.builder import ReadFrame

_TEXT, _FRAME = 150, 700
"""Bytes that one needs beside its letters."""
_MOST_ADOPTED, _MOST_LENT = 4_000, 1 << 12
"""Frames that are adopted of one body, and bytes of one: other bodies wait meanwhile."""
_MOST_BYTES = 1 << 26
"""Of the frames that a process knows which reads for the server."""


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
        self.memory += _FRAME + made.memory
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

    def part(self, texts: Iterable[int]) -> KnownFrames:
        """Some texts."""
        found = KnownFrames()
        found.texts = [self.texts[number] for number in texts]
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Of a part."""
        return {"texts": self.texts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

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

    def adopt(self, lent: Mapping[Hashable, ReadFrame]) -> None:
        for key, made in lent.items():
            if key not in self.read:
                self.read[key] = made


def lendable(met: Mapping[Hashable, ReadFrame]) -> dict[Hashable, ReadFrame]:
    """As many frames of a segment as may be adopted."""
    return dict(islice(((key, made) for key, made in met.items() if made.memory <= _MOST_LENT), _MOST_ADOPTED))


class FramesOfTenants:
    """When they are too large all begin anew. For one thread."""

    def __init__(self) -> None:
        self._of: dict[str, KnownFrames] = {}

    def of(self, tenant: str) -> KnownFrames:
        if sum(each.memory for each in self._of.values()) > _MOST_BYTES:
            self._of.clear()
        return self._of.setdefault(tenant, KnownFrames())
