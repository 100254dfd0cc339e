"""Symbol files that were uploaded, as ROOT/TENANT/BUILD_ID.sym: they name code that the agent could not name.

They are Breakpad files (docs/symbol-files.md) with functions, lines and inlined calls. A file belongs to the build in
its INFO CODE_ID. Names are looked up during a query; rows of the database do not change. The rows state the offset of
code in its file, and INFO LOAD converts it to an address in the module.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from pyprof.errors import FormatError
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.server.authorization import Refused
from pyprof.fleet.server.ingest.segment_files import FULL
from pyprof.fleet.server.ingest.segment_to_rows import is_bare
from pyprof.fleet.wire.segment_names import PART
from pyprof.importers.pprof import inflate
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import BytesSource, open_regular
from pyprof.objfile.untrusted_file_access import is_build_id
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.breakpad_names import SymbolFileNames

_MAX_TEXT = 1 << 27
"""Maximum inflated size of an uploaded symbol file in bytes."""
_MAX_OPEN = 16
_SUFFIX = ".sym"
_HEAD = 1 << 12
_LOAD = re.compile(rb"^INFO LOAD ([0-9a-f]{1,16}) ([0-9a-f]{1,16}) ([0-9a-f]{1,16})$", re.MULTILINE)
Loads = list[tuple[int, int, int]]
"""Loaded segments (PT_LOAD) of an object file: (offset in the file, address in the module, size in the file) of
each.
"""


class _OpenFile:
    """An open symbol file. A lock lets several threads use it, one at a time."""

    def __init__(self, file: SymbolFile, loads: Loads) -> None:
        self._names, self._loads = SymbolFileNames(file), loads
        self._lock = threading.Lock()

    def named(self, frame: Frame, offset: int) -> Frame:
        at = next((offset - first + rel for first, rel, size in self._loads if 0 <= offset - first < size), None)
        if at is None:
            return frame
        with self._lock:
            found = self._names.find(at)
        if found is None:
            return frame
        lines = tuple(Line(place.name, place.name, 0, place.file, place.line) for place in found.places if place.name)
        own = Line(found.name, found.name, at - found.start)
        return replace(frame, lines=lines or (own,), title=found.name)


def _loads(text: bytes) -> Loads:
    """Parse the loaded segments from the INFO LOAD lines in the first bytes of a symbol file."""
    return [(int(first, 16), int(rel, 16), int(size, 16)) for first, rel, size in _LOAD.findall(text[:_HEAD])]


class SymbolFiles:
    """The uploaded symbol files of all tenants, for several threads. `most` is the maximum total size of one tenant's
    files in bytes.
    """

    def __init__(self, root: str, most: int, disk: Disk | None = None) -> None:
        self._root, self._most, self._disk = root, most, disk or Disk()
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def store_file(self, tenant: str, build_id: str, body: bytes) -> None:
        """Store an uploaded symbol file durably. It replaces an earlier file for the same build.

        Args:
            body: The file, gzipped or not.

        Raises:
            Refused: The file is wrong, or there is no room.
        """
        try:
            text = inflate(body, _MAX_TEXT)
            found = SymbolFile(BytesSource(text), "body", Diagnostics())
        except FormatError as error:
            raise Refused("bad_symbols", str(error)) from None
        if not is_build_id(build_id) or found.code_id != build_id:
            raise Refused("bad_symbols", f"INFO CODE_ID is {found.code_id[:40] or 'not there'}, not {build_id[:40]}")
        if not _loads(text):
            raise Refused("bad_symbols", "it has no INFO LOAD, which pyprof symbols writes")
        path = self._path(tenant, build_id)
        with self._lock:
            held = sum(
                each.size
                for each in self._disk.list_folder(os.path.dirname(path))
                if each.name != f"{build_id}{_SUFFIX}"
            )
            if held + len(text) > self._most:
                text_of = f"they would have {held + len(text):,} bytes, {self._most:,} at most are kept"
                raise Refused("too_many_symbols", text_of)
            try:
                self._write(path, text)
            except OSError as error:
                raise Refused("disk_full" if error.errno in FULL else "store_failed") from None
            self._open.pop(path, None)

    def _write(self, path: str, text: bytes) -> None:
        folder = os.path.dirname(path)
        for each in (self._root, folder):
            if self._disk.make_folder(each):
                self._disk.sync_folder(os.path.dirname(each))
        part = f"{folder}/.{os.path.basename(path)}{PART}"
        if os.path.lexists(part):
            self._disk.unlink(part)
        fd = self._disk.create(part)
        try:
            self._disk.write(fd, text)
            self._disk.sync(fd)
            self._disk.rename(part, path)
        except OSError:
            self._disk.unlink(part)
            raise
        finally:
            self._disk.close(fd)
        self._disk.sync_folder(folder)

    def has(self, tenant: str, build_id: str) -> bool:
        return is_build_id(build_id) and os.path.isfile(self._path(tenant, build_id))

    def make_completer(self, tenant: str) -> Callable[[Frame, str, int], Frame]:
        """Return a function that adds missing names to a frame from uploaded symbol files. Its arguments include the
        build ID and the offset of the code in the file.
        """
        files: dict[str, _OpenFile | None] = {}

        def named(frame: Frame, build_id: str, offset: int) -> Frame:
            if frame.kind is not FrameKind.NATIVE or not is_bare(frame):
                return frame
            if build_id not in files:
                files[build_id] = self._names(tenant, build_id)
            file = files[build_id]
            return frame if file is None else file.named(frame, offset)

        return named

    def _names(self, tenant: str, build_id: str) -> _OpenFile | None:
        if not self.has(tenant, build_id):
            return None
        path = self._path(tenant, build_id)
        with self._lock:
            found = self._open.pop(path, None)
            if found is None:
                try:
                    with open(open_regular(path), "rb") as file:
                        loads = _loads(file.read(_HEAD))
                    found = _OpenFile(SymbolFile.open(path, Diagnostics()), loads)
                except (OSError, FormatError):
                    return None
            self._open[path] = found
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
            return found

    def _path(self, tenant: str, build_id: str) -> str:
        return f"{self._root}/{tenant}/{build_id}{_SUFFIX}"
