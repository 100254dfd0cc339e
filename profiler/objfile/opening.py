"""Opens object files whose format is not known yet. A further format is added here, and nowhere else."""

from __future__ import annotations

from pyprof.objfile.base import ObjectFile
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.memory_object import memory_object


def open_object_file(path: str | int) -> ObjectFile:
    """path: file name, or a file descriptor (which is duplicated). Raises OSError and FormatError."""
    return ElfFile.open(path)


def open_registered(data: bytes, name: str) -> ObjectFile:
    """data: what a process keeps in memory for debuggers; its addresses become avma. Raises FormatError."""
    return memory_object(data, name)
