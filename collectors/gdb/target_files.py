"""The files of a stub's target on this machine. Missing files are fetched through the stub."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from pyprof.collectors.gdb.stub import Stub
from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.modules import Mapping, Module, ReadMemory
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.elf.file import ElfFile, build_id_in_notes
from pyprof.objfile.elf.headers import PAGE, PT_NOTE

MAX_FETCHED = 128 << 20
"""Maximum size in bytes of a file that is fetched through a stub."""


class RemoteFiles:
    """The object files of a GDB stub's target.

    Args:
        stub: The stub.
        program: Path of the main program in the target.
        exe: The user's file of the program (--exe), or "".
        sysroot: The user's --sysroot, or "".
        diagnostics: Counts fetched files.
    """

    def __init__(self, stub: Stub, program: str, exe: str, sysroot: str, diagnostics: Diagnostics) -> None:
        self._stub = stub
        self._program = program
        self._exe = exe
        self._sysroot = sysroot.rstrip("/")
        self._diagnostics = diagnostics
        self._fetched: dict[str, str] = {}
        self._seen: set[str] = set()
        self._folder = ""

    def find(self, module: Module) -> Iterator[tuple[str, bool]]:
        """Yield candidates for the file of a module of a GDB stub's target, as (path, trusted). See
        model.modules.FindFiles.

        They are --exe for the program, the path below --sysroot, the same path on this machine, and a fetched file.
        """
        if self._exe and module.path == self._program:
            yield self._exe, True
        for root in dict.fromkeys((self._sysroot, "")):
            yield root + module.path, False
        if module.path in self._fetched:
            yield self._fetched[module.path], False

    def fetch_missing(self, mappings: tuple[Mapping, ...], read: ReadMemory) -> None:
        """Fetch files with code through the GDB stub if they are missing on this machine or have another build ID here.
        Each is tried once.
        """
        for mapping in mappings:
            path = mapping.path
            if path in self._seen or not mapping.inode or not path.startswith("/"):
                continue
            if not any(m.executable for m in mappings if m.path == path):
                continue
            self._seen.add(path)
            if not self._is_here(path, _build_id(read(mapping.start, PAGE), read, mapping.start)):
                self._fetch(path)

    def _is_here(self, path: str, build_id: str) -> bool:
        named = [self._exe] if self._exe and path == self._program else []
        for local in dict.fromkeys((*named, self._sysroot + path, path)):
            try:
                elf = ElfFile.open(local)
            except (OSError, FormatError, ValueError):
                continue
            if not build_id or elf.build_id == build_id:
                return True
        return False

    def _fetch(self, path: str) -> None:
        data = self._stub.read_whole_file(path, MAX_FETCHED)
        if not data:
            return
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="pyprof-files-")
        local = os.path.join(self._folder, str(len(self._fetched)))
        with open(local, "xb") as out:
            out.write(data)
        self._fetched[path] = local
        self._diagnostics.count("file_fetched_from_stub")

    def close(self) -> None:
        """Remove the files that were fetched through the GDB stub. Files that are open stay readable."""
        if self._folder:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            self._folder = ""


def _build_id(page: bytes, read: ReadMemory, start: int) -> str:
    """Return the build ID of the file whose first page is at `start`, or "" if it is not mapped."""
    try:
        elf = ElfFile(BytesSource(page), "[memory]", with_sections=False)
    except FormatError:
        return ""
    first = next((s for s in elf.loads if s.offset == 0), None)
    for segment in elf.segments if first is not None else ():
        if segment.type == PT_NOTE and first is not None:
            notes = read(start + segment.vaddr - first.vaddr, min(segment.filesz, 1 << 14))
            found = build_id_in_notes(memoryview(notes), elf.order)
            if found:
                return found
    return ""
