"""The memory of one sample: its stack copy and its further pieces, and nothing else."""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.sample import Piece, SampleBatch

_NO_WORDS = np.zeros(0, np.uint64)


class LaneMemory:
    """Memory of lane i of a batch. low, high: the avma span of its stack copy."""

    def __init__(self, batch: SampleBatch, lane: int) -> None:
        slab = batch.stack
        self.low = int(slab.base[lane])
        self.size = int(slab.size[lane])
        self.high = self.low + self.size
        self._offset = int(slab.offset[lane])
        self._data = slab.data.data  # a view: nothing is copied
        self._pieces: tuple[Piece, ...] = slab.pieces.get(lane, ())
        self._arch = batch.arch
        self._word = batch.arch.word
        self._order: Literal["little", "big"] = "little" if batch.arch.byteorder == "little" else "big"
        self._unpack = struct.Struct(word_format(batch.arch)).unpack_from

    def word(self, avma: int) -> int | None:
        """The address-sized word at avma, None where it is not known."""
        at = avma - self.low
        if 0 <= at <= self.size - self._word:
            value: int = self._unpack(self._data, self._offset + at)[0]
            return value
        return self.read(avma, self._word) if self._pieces else None

    def read(self, avma: int, size: int) -> int | None:
        """size bytes at avma as an unsigned number, None where they are not known."""
        at = avma - self.low
        if 0 <= at <= self.size - size:
            start = self._offset + at
            return int.from_bytes(self._data[start : start + size], self._order)
        for piece in self._pieces:
            at = avma - piece.avma
            if 0 <= at <= len(piece.data) - size:
                return int.from_bytes(piece.data[at : at + size], self._order)
        return None

    def words(self, avma: int, most: int) -> tuple[int, npt.NDArray[np.uint64]]:
        """(avma of the first, at most `most` aligned words of the stack copy from avma on)."""
        first = max(avma, self.low) + self._word - 1 & -self._word
        count = min(max(self.high - first, 0) // self._word, most)
        dtype = np.dtype(word_format(self._arch).replace("Q", "u8").replace("I", "u4"))
        start = self._offset + first - self.low
        return first, np.frombuffer(self._data, dtype, count, start).astype(np.uint64) if count else _NO_WORDS

    def native_words(self) -> npt.NDArray[np.unsignedinteger]:
        """The stack copy as it is, as words of this machine: of the other byte order they mean nothing."""
        size = self.size & -self._word
        return np.frombuffer(self._data, np.dtype(f"u{self._word}"), size // self._word, self._offset)

    def holds(self, avma: int) -> bool:
        """avma is inside the stack copy, or just past its end."""
        return self.low <= avma <= self.high


def word_format(arch: Arch) -> str:
    """struct's format of one address."""
    return ("<" if arch.byteorder == "little" else ">") + ("Q" if arch.word == 8 else "I")
