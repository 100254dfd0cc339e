"""An existing folder, for example of another machine: DAY/SERVICE/END_NS-UUID.pb.gz, as in the spool.

Other users may create names in it. So each folder is opened relative to a descriptor, and links are not followed.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress

from pyprof.agent.segment_names import SegmentName
from pyprof.agent.spool_io import Disk
from pyprof.exporters import output_file


class FolderSink:
    def __init__(self, path: str) -> None:
        self._path = path
        self._disk = Disk()

    def send(self, name: SegmentName, data: bytes) -> None:
        """Store a segment durably in the sink's directory.

        Raises:
            OSError: Writing failed.
        """
        with ExitStack() as opened:
            folder = _entered(output_file.open_folder(self._path), opened)
            for part in (name.day, name.folder):
                if self._disk.make_folder(f"{folder}/{part}"):
                    self._disk.sync_folder(folder)
                folder = _entered(output_file.open_directory(f"{folder}/{part}", os.O_NOFOLLOW), opened)
            self._write(folder, name.name, data)

    def _write(self, folder: str, name: str, data: bytes) -> None:
        part_file = f"{folder}/.{name}.part"
        with suppress(FileNotFoundError):
            self._disk.unlink(part_file)
        fd = self._disk.create(part_file)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(part_file, f"{folder}/{name}")
        self._disk.sync_folder(folder)


def _entered(fd: int, opened: ExitStack) -> str:
    """Return a path that names the folder of an open descriptor."""
    opened.callback(os.close, fd)
    return f"/proc/self/fd/{fd}"
