"""Synthetic memory of a target."""

from __future__ import annotations

import struct


class Memory:
    """Memory that consists of pieces. All other addresses are unreadable.

    Attributes:
        pieces: Contents by address.
        reads: Number of reads.
    """

    def __init__(self) -> None:
        self.pieces: dict[int, bytearray] = {}
        self.reads = 0

    def put(self, avma: int, data: bytes) -> int:
        self.pieces[avma] = bytearray(data)
        return avma

    def words(self, avma: int, *words: int) -> int:
        return self.put(avma, struct.pack(f"<{len(words)}Q", *words))

    def read(self, avma: int, size: int) -> bytes:
        self.reads += 1
        for start, data in self.pieces.items():
            if start <= avma < start + len(data):
                return bytes(data[avma - start : avma - start + size])
        return b""
