"""All instructions of an entry of .ARM.exidx, as readelf lists them."""

from __future__ import annotations

from pyprof.unwind.formats.exidx.opcodes import Opcode, instruction


def listing(code: bytes) -> list[Opcode]:
    """Those after a finish (padding), too."""
    done: list[Opcode] = []
    position = 0
    while position < len(code):
        done.append(instruction(code, position, "s", 0))
        position += len(done[-1].code)
    return done
