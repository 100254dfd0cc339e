"""Opening of object files of any format. A new format is added only here."""

from __future__ import annotations

import os

from pyprof.objfile.base import ObjectFile
from pyprof.objfile.byte_source import FileSource, open_regular
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_memory_image import relocate_memory_object
from pyprof.objfile.pe import PeFile


def open_object_file(path: str | int) -> ObjectFile:
    """Open an object file of any supported format.

    Args:
        path: File name, or a file descriptor, which is duplicated.

    Raises:
        OSError: The file cannot be opened.
        FormatError: The file's format is unknown, or the file is broken.
    """
    source = FileSource(os.dup(path) if isinstance(path, int) else open_regular(path))
    kind = PeFile if bytes(source.read(0, 2)) == b"MZ" else ElfFile
    return kind(source, str(path))


def open_memory_object(data: bytes, name: str) -> ObjectFile:
    """Return the object file that a process keeps in memory for debuggers, with addresses in the process.

    Raises:
        FormatError: The object file is broken.
    """
    return relocate_memory_object(data, name)
