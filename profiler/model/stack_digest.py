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
    """found_by: as exporters/evidence.py writes it, without the field's number."""
    place = (module.path, module.build_id, module.start, module.end, module.offset) if module is not None else ()
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
