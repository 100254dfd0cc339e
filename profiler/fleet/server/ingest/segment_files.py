"""The received segments, as files TENANT/DAY/SERVICE/END_NS-KEY.pb.gz. The files are authoritative, not the database.

A file is written under a temporary name, synced and linked to its name, and never changed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

from pyprof.fleet.file_system_calls import Disk, locked
from pyprof.fleet.wire.segment_names import PART, SegmentName, is_day
from pyprof.objfile.byte_source import open_regular

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Values of OSError.errno for a full disk."""
_MAX_BYTES = 1 << 28
_CHECK_BYTES = 1 << 16
"""Size in bytes of the file that the server's health check writes."""
_MAX_FOLDERS = 1 << 16
"""Maximum number of segment folders that are remembered as durable."""


class DiskFull(Exception):
    """The server's disk is full; nothing of the segment was stored."""


class SegmentFiles:
    """The files of received segments. Several threads may use it. The constructor creates and locks the folder, and
    raises OutputError if that fails.
    """

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self.root = root
        self._disk = disk or Disk()
        self._lock = locked(root)
        self._folders = threading.Lock()
        self._durable: set[str] = set()

    def store_segment(self, tenant: str, name: SegmentName, data: bytes) -> bool:
        """Store a segment's file, and return when it is durable.

        Returns:
            True if the file is new, False if a file with this name exists already.

        Raises:
            DiskFull: The disk is full.
            OSError: Writing failed.
        """
        path = f"{self.root}/{tenant}/{name.path}"
        folder = os.path.dirname(path)
        part = f"{folder}/.{name.name}.{threading.get_ident():x}{PART}"
        try:
            self._write(folder, part, data, tenant, name)
            try:
                self._disk.link(part, path)  # link fails if two requests store the same name at once; rename would not
                new = True
            except FileExistsError:
                new = False
            finally:
                self._disk.unlink(part)
            self._disk.sync_folder(folder)  # the name may be new from another thread or a killed server
        except OSError as error:
            if error.errno in FULL:
                if os.path.lexists(path):
                    return False
                raise DiskFull from None
            raise
        return new

    def has(self, tenant: str, path: str) -> bool:
        """Return True if the file of a segment is there, or if that cannot be known because the disk fails."""
        try:
            os.stat(f"{self.root}/{tenant}/{path}", follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def check(self) -> None:
        """Check that the disk takes files: write a small one and delete it.

        Raises:
            OSError: Writing failed.
        """
        path = f"{self.root}/.check{PART}"
        fd = self._disk.create(path)
        try:
            self._disk.write(fd, b"x" * _CHECK_BYTES)
        finally:
            self._disk.close(fd)
            self._disk.unlink(path)

    def _write(self, folder: str, part: str, data: bytes, tenant: str, name: SegmentName) -> None:
        fd = self._create(folder, part, tenant, name)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        except OSError:
            self._disk.unlink(part)
            raise
        finally:
            self._disk.close(fd)

    def _create(self, folder: str, part: str, tenant: str, name: SegmentName) -> int:
        """Create the temporary file of a segment. This assumes that the folder exists and that the name is free.

        Each system call releases the GIL and may hand it to another thread, so the usual case must make few system
        calls.
        """
        if folder in self._durable:
            with suppress(FileNotFoundError, FileExistsError):
                return self._disk.create(part)
            self._forget_folders()
        try:
            self._make_folders(tenant, name)
        except FileNotFoundError:  # something has removed the tenant's or the day's folder
            self._forget_folders()
            self._make_folders(tenant, name)
        with suppress(FileNotFoundError):
            self._disk.unlink(part)
        return self._disk.create(part)

    def _make_folders(self, tenant: str, name: SegmentName) -> None:
        """Make the folders of a segment and sync them. Existing folders are synced too: a killed server may have made
        them without a sync.
        """
        folder = self.root
        with self._folders:
            for each in (tenant, name.day, name.folder):
                inner = f"{folder}/{each}"
                if inner not in self._durable:
                    self._disk.make_folder(inner)
                    self._disk.sync_folder(folder)
                    if len(self._durable) >= _MAX_FOLDERS:
                        self._durable.clear()
                    self._durable.add(inner)
                folder = inner

    def _forget_folders(self) -> None:
        with self._folders:
            self._durable.clear()

    def read(self, tenant: str, name: SegmentName) -> bytes:
        """Read the file of a segment.

        Raises:
            OSError: The file cannot be read.
        """
        with open(open_regular(f"{self.root}/{tenant}/{name.path}"), "rb") as file:
            return file.read(_MAX_BYTES)

    def all(self) -> Iterator[tuple[str, SegmentName, int]]:
        """Yield (tenant, name, size in bytes) of all stored segments. Within a tenant they are sorted by day only."""
        for tenant in self._disk.list_folder(self.root):
            if not tenant.is_folder or tenant.name.startswith("."):
                continue
            for day in sorted(
                each.name for each in self._disk.list_folder(f"{self.root}/{tenant.name}") if is_day(each.name)
            ):
                for folder in self._disk.list_folder(f"{self.root}/{tenant.name}/{day}"):
                    for file in self._disk.list_folder(f"{self.root}/{tenant.name}/{day}/{folder.name}"):
                        name = SegmentName.parse(day, folder.name, file.name)
                        if name is not None and not file.is_folder:
                            yield tenant.name, name, file.size

    def drop_day(self, day: str) -> int:
        """Delete the segments of one day of all tenants, and return their number.

        Raises:
            OSError: A file cannot be deleted.
        """
        dropped = 0
        for tenant in list(self._disk.list_folder(self.root)):
            root = f"{self.root}/{tenant.name}/{day}"
            for folder in list(self._disk.list_folder(root)):
                for file in list(self._disk.list_folder(f"{root}/{folder.name}")):
                    self._disk.unlink(f"{root}/{folder.name}/{file.name}")
                    dropped += not file.name.startswith(".")
                self._disk.remove_folder(f"{root}/{folder.name}")
            if os.path.isdir(root):
                self._disk.remove_folder(root)
        self._forget_folders()
        return dropped

    def close(self) -> None:
        os.close(self._lock)
