"""Goroutines of Go programs: where a thread's goroutine is, and how a sample carries it to the unwinder.

A thread of a Go program leaves its goroutine's stack for calls of C, for parts of the runtime and for signal handlers.
Go keeps what leads back in the struct g of the goroutine (runtime/runtime2.go). A sample then has pieces with that
struct and with the goroutine's stack.
"""

from __future__ import annotations

import struct

from pyprof.model.sample_batch import Piece

GOROUTINE_WORD = 1 << 63
"""Address of a Piece that contains the address of the thread's goroutine. No process has memory there: on all
architectures of Go that are sampled it belongs to the kernel, or to nothing.
"""


def make_goroutine_pieces(goroutine: int, head: bytes, base: int, stack: bytes) -> tuple[Piece, ...]:
    """Return the pieces of a sample whose thread has left the stack of its goroutine.

    Args:
        goroutine: Address of the goroutine's struct g.
        head: Memory from that address on.
        base: Address of the first word that is needed of the goroutine's stack.
        stack: Memory from there on.
    """
    return make_goroutine_piece(goroutine), Piece(goroutine, head), Piece(base, stack)


def make_goroutine_piece(goroutine: int) -> Piece:
    """Return the piece of a sample that says which goroutine its thread runs, by the address of its struct g."""
    return Piece(GOROUTINE_WORD, struct.pack("=Q", goroutine))
