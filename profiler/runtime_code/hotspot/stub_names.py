"""Names of HotSpot's stubs, such as call_stub or jbyte_arraycopy, from the list of their descriptions (StubCodeDesc).

vmStructs does not have the list. Its address is a symbol of libjvm.so, which stripped files lack.
"""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.records import dataclass
from pyprof.runtime_code.hotspot.vm_structs import VmMemory

STUB_LIST = b"_ZN12StubCodeDesc5_listE"
"""Symbol of the word with the address of the first description of a stub (StubCodeDesc::_list)."""
MAX_STUBS = 1 << 13
"""Maximum number of HotSpot's stubs. JDK 26 has about 500."""
_MAX_NAME = 128
_GENERATOR, _SUFFIX = "Stub Generator ", "_stub"
"""Prefix and suffix of names from JDK 26 on."""

_LAYOUT = struct.Struct("<6Q")
"""Words of a StubCodeDesc: next, group, name, [index up to JDK 10], begin, end."""


@dataclass(frozen=True, slots=True)
class HotspotStub:
    """One stub of HotSpot.

    Attributes:
        start: First address of its code.
        end: Address after its code.
        name: Name of the stub in HotSpot's sources.
    """

    start: int
    end: int
    name: str


def read_stubs(memory: VmMemory, list_avma: int, start: int, end: int) -> tuple[HotspotStub, ...]:
    """Return the stubs in a piece of HotSpot's code, ascending. Unreadable descriptions end the list.

    Args:
        memory: Memory of the process.
        list_avma: Address of the word that STUB_LIST names.
        start: First address of the code.
        end: Address after the code.
    """
    found: list[HotspotStub] = []
    try:
        at = memory.word(list_avma)
        for _ in range(MAX_STUBS):
            if not at:
                break
            at, _, name, *words = _LAYOUT.unpack(memory.read(at, _LAYOUT.size))
            low, high = words[:2] if words[0] > 0xFFFF_FFFF else words[1:]
            if start <= low < high <= end:
                found.append(HotspotStub(low, high, _show(memory.text(name, _MAX_NAME))))
    except FormatError:
        pass
    return tuple(sorted((stub for stub in found if stub.name.isprintable() and stub.name), key=lambda stub: stub.start))


def _show(name: str) -> str:
    """Return a stub's name as versions before JDK 26 state it."""
    return name.removeprefix(_GENERATOR).removesuffix(_SUFFIX) if name.startswith(_GENERATOR) else name
