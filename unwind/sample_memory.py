"""The memory of one sample: its stack copy and its further pieces. No other memory is ever read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.sample_batch import Piece, SampleBatch

_NO_WORDS = np.zeros(0, np.uint64)


class LaneMemory:
    """The memory of one sample of a batch.

    Attributes:
        low: Address in the process of the first byte of the stack copy.
        high: Address after the last byte of the stack copy.
        size: Size of the copy in bytes.
    """

    def __init__(self, batch: SampleBatch, lane: int) -> None:
        slab = batch.stack
        self.low = int(slab.base[lane])
        self.size = int(slab.size[lane])
        self.high = self.low + self.size
        self._offset = int(slab.offset[lane])
        self._data = slab.data.data  # a view: nothing is copied
        self._pieces: tuple[Piece, ...] = slab.pieces.get(lane, ())
        beyond = slab.beyond.get(lane)
        if beyond is not None and beyond.exact and beyond.outer is not None:
            outer = Piece(beyond.outer.avma, beyond.outer.words.data.cast("B"))
            self._pieces += (*beyond.spots, outer)
        self._arch = batch.arch
        self._word = batch.arch.word
        self._order: Literal["little", "big"] = "little" if batch.arch.byteorder == "little" else "big"
        self._unpack = struct.Struct(find_word_format(batch.arch)).unpack_from

    def word(self, avma: int) -> int | None:
        """Return the address-sized word at an address of the sample's memory, or None if the sample does not hold
        it.
        """
        at = avma - self.low
        if 0 <= at <= self.size - self._word:
            value: int = self._unpack(self._data, self._offset + at)[0]
            return value
        return self.read(avma, self._word) if self._pieces else None

    def read(self, avma: int, size: int) -> int | None:
        """Return `size` bytes at an address of the sample's memory as an unsigned number, or None if the sample does
        not hold them.
        """
        at = avma - self.low
        if 0 <= at <= self.size - size:
            start = self._offset + at
            return int.from_bytes(self._data[start : start + size], self._order)
        for piece in self._pieces:
            at = avma - piece.avma
            if 0 <= at <= len(piece.data) - size:
                return int.from_bytes(piece.data[at : at + size], self._order)
        return None

    def words(self, avma: int, max_words: int) -> tuple[int, npt.NDArray[np.uint64]]:
        """Return the aligned words of the stack copy from an address on.

        Returns:
            The address of the first word, and at most `max_words` words.
        """
        first = max(avma, self.low) + self._word - 1 & -self._word
        count = min(max(self.high - first, 0) // self._word, max_words)
        dtype = np.dtype(find_word_format(self._arch).replace("Q", "u8").replace("I", "u4"))
        start = self._offset + first - self.low
        return first, np.frombuffer(self._data, dtype, count, start).astype(np.uint64) if count else _NO_WORDS

    def native_words(self) -> npt.NDArray[np.unsignedinteger]:
        """Return the stack copy as words in this machine's byte order.

        The values are meaningless if the target has the other byte order.
        """
        size = self.size & -self._word
        return np.frombuffer(self._data, np.dtype(f"u{self._word}"), size // self._word, self._offset)

    def holds(self, avma: int) -> bool:
        """Return True if an address lies inside the stack copy, or directly after its end."""
        return self.low <= avma <= self.high


def read_words(
    batch: SampleBatch, lanes: npt.NDArray[np.int64], avmas: Sequence[npt.NDArray[np.uint64]]
) -> npt.NDArray[np.uint64]:
    """Return the words at some aligned addresses of the stack copy of each sample.

    Args:
        batch: The samples.
        lanes: Indexes of n samples.
        avmas: k arrays, each with an address for each sample.

    Returns:
        (k, n) words, 0 where the stack copy does not hold one.
    """
    slab, arch = batch.stack, batch.arch
    dtype = np.dtype(find_word_format(arch).replace("Q", "u8").replace("I", "u4"))
    words = slab.data[: len(slab.data) // arch.word * arch.word].view(dtype)
    size, first = slab.size[lanes], slab.offset[lanes].astype(np.uint64)
    offset = np.array(avmas, np.uint64).reshape(len(avmas), -1) - slab.base[lanes]
    held = (offset <= np.maximum(size - arch.word, 0).astype(np.uint64)) & (size >= arch.word)
    held &= offset % np.uint64(arch.word) == 0
    at = np.where(held, first + offset, np.uint64(0)) // np.uint64(arch.word)
    return np.where(held, words[at.view(np.int64)], np.uint64(0)) if len(words) else at


def find_word_format(arch: Arch) -> str:
    """Return the format with which the struct module reads one address of an architecture."""
    return ("<" if arch.byteorder == "little" else ">") + ("Q" if arch.word == 8 else "I")
