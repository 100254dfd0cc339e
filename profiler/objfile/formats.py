"""Opens object files of any format. A new format is added only here."""

from __future__ import annotations

from pyprof.objfile.base import ObjectFile
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.memory_image import relocate_memory_object


def open_object_file(path: str | int) -> ObjectFile:
    """Open an object file of any supported format.

    Args:
        path: File name, or a file descriptor, which is duplicated.

    Raises:
        OSError: The file cannot be opened.
        FormatError: Its format is unknown or it is broken.
    """
    return ElfFile.open(path)


def open_memory_object(data: bytes, name: str) -> ObjectFile:
    """Return the object file that a process keeps in memory for debuggers, with addresses in the process.

    Raises:
        FormatError: The object file is broken.
    """
    return relocate_memory_object(data, name)
