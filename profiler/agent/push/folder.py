"""A folder that is there, for instance of another machine: DAY/SERVICE/END_NS-UUID.pb.gz, as in the spool."""

from __future__ import annotations

from contextlib import suppress

from pyprof.agent.disk import Disk
from pyprof.agent.segments import SegmentName


class FolderSink:
    def __init__(self, path: str) -> None:
        self._path = path
        self._disk = Disk()

    def send(self, name: SegmentName, data: bytes) -> None:
        """Raises OSError."""
        folder = self._path
        for part in (name.day, name.folder):
            if self._disk.make_folder(f"{folder}/{part}"):
                self._disk.sync_folder(folder)
            folder = f"{folder}/{part}"
        part_file = f"{folder}/.{name.name}.part"
        with suppress(FileNotFoundError):
            self._disk.unlink(part_file)
        fd = self._disk.create(part_file)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(part_file, f"{folder}/{name.name}")
        self._disk.sync_folder(folder)
