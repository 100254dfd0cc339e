"""The segments that were taken, as files: TENANT/DAY/SERVICE/END_NS-KEY.pb.gz. They are the truth.

A file is written under another name, synced and renamed, and never changed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

from pyprof.agent.disk import Disk, locked
from pyprof.agent.segments import PART, SegmentName, is_day
from pyprof.objfile.source import open_regular

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Of OSError."""
_MOST_BYTES = 1 << 28


class DiskFull(Exception):
    """Nothing of the segment was kept."""


class SegmentFiles:
    """Locks the folder, which is made. Raises OutputError. May be used by several threads at once."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self.root = root
        self._disk = disk or Disk()
        self._lock = locked(root)
        self._folders = threading.Lock()

    def keep(self, tenant: str, name: SegmentName, data: bytes) -> bool:
        """Returns when it is durable. False where there is one of this name. Raises DiskFull, OSError."""
        path = f"{self.root}/{tenant}/{name.path}"
        if os.path.lexists(path):
            return False
        part = f"{os.path.dirname(path)}/.{name.name}.{threading.get_ident():x}{PART}"
        try:
            self._make_folders(tenant, name)
            self._write(part, data)
            try:
                self._disk.link(part, path)  # not rename: of two that come at once one is there already
            except FileExistsError:
                return False
            finally:
                self._disk.unlink(part)
            self._disk.sync_folder(os.path.dirname(path))
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull from None
            raise
        return True

    def _make_folders(self, tenant: str, name: SegmentName) -> None:
        folder = self.root
        with self._folders:
            for each in (tenant, name.day, name.folder):
                if self._disk.make_folder(f"{folder}/{each}"):
                    self._disk.sync_folder(folder)
                folder = f"{folder}/{each}"

    def _write(self, part: str, data: bytes) -> None:
        with suppress(FileNotFoundError):
            self._disk.unlink(part)
        fd = self._disk.create(part)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        except OSError:
            self._disk.unlink(part)
            raise
        finally:
            self._disk.close(fd)

    def read(self, tenant: str, name: SegmentName) -> bytes:
        """Raises OSError."""
        with open(open_regular(f"{self.root}/{tenant}/{name.path}"), "rb") as file:
            return file.read(_MOST_BYTES)

    def all(self) -> Iterator[tuple[str, SegmentName, int]]:
        """Tenant, name and bytes, by day, in no other order."""
        for tenant in self._disk.look(self.root):
            if not tenant.is_folder or tenant.name.startswith("."):
                continue
            for day in sorted(each.name for each in self._disk.look(f"{self.root}/{tenant.name}") if is_day(each.name)):
                for folder in self._disk.look(f"{self.root}/{tenant.name}/{day}"):
                    for file in self._disk.look(f"{self.root}/{tenant.name}/{day}/{folder.name}"):
                        name = SegmentName.parse(day, folder.name, file.name)
                        if name is not None and not file.is_folder:
                            yield tenant.name, name, file.size

    def drop_day(self, day: str) -> int:
        """Of all tenants; how many segments that were. Raises OSError."""
        dropped = 0
        for tenant in list(self._disk.look(self.root)):
            root = f"{self.root}/{tenant.name}/{day}"
            for folder in list(self._disk.look(root)):
                for file in list(self._disk.look(f"{root}/{folder.name}")):
                    self._disk.unlink(f"{root}/{folder.name}/{file.name}")
                    dropped += not file.name.startswith(".")
                self._disk.remove_folder(f"{root}/{folder.name}")
            if os.path.isdir(root):
                self._disk.remove_folder(root)
        return dropped

    def close(self) -> None:
        os.close(self._lock)
