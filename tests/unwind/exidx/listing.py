"""All instructions of an .ARM.exidx entry in readelf's form."""

from __future__ import annotations

from pyprof.unwind.formats.exidx_unwind_instructions import Opcode, decode_opcode


def listing(code: bytes) -> list[Opcode]:
    """Return all instructions, including the padding after a finish."""
    done: list[Opcode] = []
    position = 0
    while position < len(code):
        done.append(decode_opcode(code, position, "s", 0))
        position += len(done[-1].code)
    return done
