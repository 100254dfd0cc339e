"""What tells stacks apart by their content, the same in every file.

A reader of many files knows those it has seen. The texts are joined with their lengths, so that no two contents are the
same text. The digests are not secret: a file may state one that is not its own, so a reader works out those that are
new to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pyprof.model.profile import ModuleInfo

SIZE = 10
"""Bytes of a stack's digest."""
_FRAME = 16
NamedLine = tuple[str, str, str, int]
"""Function, its name in the file's tables, source file, line."""


def of_frame(address: int, module: ModuleInfo | None, lines: Iterable[NamedLine], found_by: bytes) -> bytes:
    """found_by: as exporters/evidence.py writes it, without the field's number. Code of a file with a build-id is where
    it is in the file, wherever a process has the file.
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
    """frames: digests, innermost first."""
    return hashlib.blake2b(b"".join(frames), digest_size=SIZE).digest()


def _digest(texts: Iterable[bytes], size: int) -> bytes:
    return hashlib.blake2b(b"".join(b"%d:%b" % (len(text), text) for text in texts), digest_size=size).digest()
