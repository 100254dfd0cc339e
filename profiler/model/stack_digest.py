"""Digests that identify stacks by their content. Equal stacks have equal digests in every file.

A reader of many files recognises stacks that it has seen. Texts are joined with their lengths, so that different
contents give different input. The digests are not secret. A file may state a wrong digest, so a reader recomputes those
that it has not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pyprof.model.profile import ModuleInfo

SIZE = 10
"""Number of bytes of a stack's digest."""
_FRAME = 16
NamedLine = tuple[str, str, str, int]
"""A function at an address: its name, its name in the file's symbol table, source file, line."""


def of_frame(address: int, module: ModuleInfo | None, lines: Iterable[NamedLine], found_by: bytes) -> bytes:
    """Return the digest that identifies a frame by its content.

    Code of a file with a build id is identified by its offset in the file, wherever a process maps the file.

    Args:
        address: The frame's address.
        module: The frame's module.
        lines: The functions at the address.
        found_by: The source of the frame as exporters/pprof.py writes it, without the field number.
    """
    place: tuple[str | int, ...] = ()
    if module is not None and module.build_id:
        place, address = (module.path, module.build_id), (address - module.start + module.offset) % (1 << 64)
    elif module is not None:
        place = (module.path, "", module.start, module.end, module.offset)
    parts: list[str | int] = [address, len(place), *place]
    for line in lines:
        parts += line
    texts = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else b"%d" % part for part in parts]
    return _digest((*texts, found_by), _FRAME)


def of_stack(frames: Iterable[bytes]) -> bytes:
    """Return the digest of a stack, which identifies it by its content.

    Args:
        frames: Digests of the frames, innermost first.
    """
    return hashlib.blake2b(b"".join(frames), digest_size=SIZE).digest()


def _digest(texts: Iterable[bytes], size: int) -> bytes:
    return hashlib.blake2b(b"".join(b"%d:%b" % (len(text), text) for text in texts), digest_size=size).digest()
