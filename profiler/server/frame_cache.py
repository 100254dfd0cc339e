"""Cache of the frames in a tenant's segments: as segments state them, and as the database stores them.

The windows of a service have new stacks each minute, but few new frames. The cache may be dropped at any time; frames
are then read from the segments.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from pyprof.importers.profile_builder import ReadFrame

_TEXT, _FRAME = 150, 700
"""Estimated size in bytes of a cached text and of a cached frame, without characters."""
_MAX_ADOPTED, _MAX_LENT = 4_000, 1 << 12
"""Maximum number of frames that the cache adopts from one body, and maximum size of one in bytes. Other bodies wait
meanwhile.
"""
_MAX_BYTES = 1 << 26
"""Maximum size in bytes of the cached frames in the process that reads large bodies."""


class ShownFrame(NamedTuple):
    """A frame as the server's stacks contain it.

    Attributes:
        number: Number of its text.
        piece: Its text with the length in front (piece_of()).
        letters: Number of characters of the text.
        build: Path and build ID of the frame's object file.
        bare: True if the frame's function has no name.
        is_marker: True for a marker.
        is_cut: True if it says that the stack was truncated here.
    """

    number: int
    piece: bytes
    letters: int
    build: tuple[str, str] | None
    bare: bool
    is_marker: bool
    is_cut: bool


def piece_of(text: str) -> bytes:
    """Encode a frame's text with its length, so that different lists of texts have different concatenations."""
    data = text.encode("utf-8", "replace")
    return len(data).to_bytes(4, "little") + data


class _ReadFrames(dict[Hashable, ReadFrame]):
    """A cache of frames by what segments state about them (Builder.read), which estimates its own size in bytes
    (`memory`).
    """

    memory = 0

    def __setitem__(self, key: Hashable, made: ReadFrame) -> None:
        self.memory += _FRAME + made.memory
        super().__setitem__(key, made)


class FrameCache:
    """The frames of one tenant's segments that the server caches.

    Attributes:
        read: See Builder.read.
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
        """Return a copy of the frame cache with only some texts, numbered from 0."""
        found = FrameCache()
        found.texts = [self.texts[number] for number in texts]
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the texts of the frame cache; only copies from part() are pickled."""
        return {"texts": self.texts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def memory(self) -> int:
        """The estimated size of the frame cache in bytes."""
        return self._memory + self.read.memory

    def text(self, text: str) -> int:
        """Return the number of a frame's text in the cache, and add the text if it is new."""
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
        """Store a frame in the cache of shown frames under its digest."""
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
    """Return the frames of a segment that the cache of another process may take over."""
    return dict(islice(((key, made) for key, made in met.items() if made.memory <= _MAX_LENT), _MAX_ADOPTED))


class TenantFrameCaches:
    """The frame caches of all tenants, for one thread. All are cleared when they become too large."""

    def __init__(self) -> None:
        self._of: dict[str, FrameCache] = {}

    def get_cache(self, tenant: str) -> FrameCache:
        if sum(each.memory for each in self._of.values()) > _MAX_BYTES:
            self._of.clear()
        return self._of.setdefault(tenant, FrameCache())
