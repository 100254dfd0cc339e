"""What stands inside the innermost frame of user code: the kernel's own frames, or the call in which a thread sleeps.

One word each: an address in the kernel's half, or what blocked_word() makes.
"""

from __future__ import annotations

from pyprof.model.arch import ARCHES, Arch
from pyprof.records import dataclass

KERNEL_HALF = 1 << 63

_ARCHES = tuple(arch for _, arch in sorted(ARCHES.items()))
_PLACES = {arch.name: place for place, arch in enumerate(_ARCHES)}
"""By name: an arch with the mask of a process's signatures is the same."""
_ARCH_BITS, _STATE_BITS, _CALL_BITS = 8, 8, 32


@dataclass(frozen=True, slots=True)
class Blocked:
    """state: the letter of /proc/TID/stat. call: number of the system call, -1 outside of one."""

    arch: Arch
    state: str
    call: int


def blocked_word(arch: Arch, state: str, call: int) -> int:
    call = call + 1 if 0 <= call < (1 << _CALL_BITS) - 1 else 0
    return (_PLACES[arch.name] << _STATE_BITS | ord(state) & 0xFF) << _CALL_BITS | call


def parse_blocked(word: int) -> Blocked:
    """The inverse, of words below KERNEL_HALF."""
    rest, call = divmod(word, 1 << _CALL_BITS)
    arch, state = divmod(rest, 1 << _STATE_BITS)
    return Blocked(_ARCHES[arch], chr(state), call - 1)
