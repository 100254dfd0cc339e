"""The database in a folder of this machine: it opens only when its disk has room, and a damaged one is set aside.

ClickHouse rewrites metadata files when it opens a folder. On a full disk such a file ends up empty, and then ClickHouse
cannot open the folder again. The segment files are authoritative, so an empty database replaces a damaged one, and the
indexer fills it again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.server.store.clickhouse_engine import ChdbEngine, Dialect, StoreAddress, StoreError, migrate
from pyprof.fleet.server.store.clickhouse_native_blocks import Block

MIN_FREE_BYTES = 8 << 20
"""Number of free bytes on the disk below which the server does not open its database."""
_PROBE_BYTES = 1 << 16
"""Size in bytes of the test file that is written before the database opens. It detects a quota, which free bytes do not
show.
"""
_DAMAGE = frozenset({27, 32, 33, 36, 40, 49, 62, 79, 107, 226, 231, 246})
"""ClickHouse's error numbers of damaged files: those of the parser, of checksums and of missing files. chdb reports
error 36 for each folder that it cannot open, so other causes are excluded before.
"""
_NO_ROOM_HINT = "free space on the disk of the database"


class LocalEngine:
    """An SQL engine of a database in a folder, used like Engine. Until the disk has room to open the folder, all
    methods raise StoreError.

    Attributes:
        was_damaged: True if the folder was damaged, so that an empty database has replaced it.
    """

    def __init__(self, where: StoreAddress, days: int, say: Callable[..., None]) -> None:
        """Open the database if its disk has room. Otherwise a later call of a method opens it.

        Args:
            days: Number of days that rows are kept.
            say: Function that writes a line of the log.

        Raises:
            StoreError: Another server uses the folder, or it cannot be used.
            UsageError: Packages are missing.
        """
        self.dialect = Dialect(days=days)
        self.was_damaged = False
        self._where, self._days, self._say = where, days, say
        self._lock = threading.Lock()
        self._engine: ChdbEngine | None = None
        try:
            os.makedirs(where.path, 0o750, exist_ok=True)
            _check_room(where.path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreError(f"{where.path} cannot be used: {error.strerror}", "choose another --data") from None
            say("warning", "database not opened", error=str(_no_room(where.path)), hint=_NO_ROOM_HINT)
        else:
            self._open()

    def run(self, sql: str) -> None:
        self._open().run(sql)

    def put(self, sql: str) -> None:
        self._open().put(sql)

    def rows(self, sql: str, patience_s: float = 0) -> list[list[Any]]:
        return self._open().rows(sql, patience_s)

    def insert(self, table: str, block: Block) -> None:
        self._open().insert(table, block)

    def check(self) -> None:
        self._open().check()

    def check_room(self) -> None:
        """Raise StoreError if the database is not open because its disk has too little room."""
        if self._engine is None:
            try:
                _check_room(self._where.path)
            except OSError:
                raise _no_room(self._where.path) from None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _open(self) -> ChdbEngine:
        """Return the engine of the database, and open the database first if no attempt has succeeded yet.

        Raises:
            StoreError: The disk has no room, or the database cannot be opened.
            UsageError: Packages are missing.
        """
        with self._lock:
            if self._engine is None:
                path = self._where.path
                check_unused(path)
                try:
                    _check_room(path)
                except OSError:
                    raise _no_room(path) from None
                try:
                    self._engine = self._migrated()
                except StoreError as error:
                    if error.code not in _DAMAGE or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                        raise
                    to = set_aside(path)
                    self.was_damaged = True
                    self._say("error", "damaged database set aside", folder=to, error=error.message)
                    self._engine = self._migrated()
            return self._engine

    def _migrated(self) -> ChdbEngine:
        engine = ChdbEngine(self._where, self._days)
        try:
            migrate(engine)
        except BaseException:
            engine.close()
            raise
        return engine


def check_unused(path: str) -> None:
    """Raise StoreError if a server uses the folder of a database. A running ClickHouse locks the file `status` in
    it.
    """
    try:
        fd = os.open(f"{path}/status", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # no server has used the folder yet
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(
            f"{path} cannot be opened: another process uses it",
            "stop the server that uses it, or choose another --data",
        ) from None
    finally:
        os.close(fd)


def set_aside(path: str) -> str:
    """Rename the folder of a damaged database to PATH.damaged-TIME, and return the new name. A folder that was renamed
    earlier is deleted.

    Raises:
        StoreError: The folder cannot be renamed.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    try:
        for entry in os.listdir(folder):
            if entry.startswith(f"{name}.damaged-"):
                shutil.rmtree(f"{folder}/{entry}", ignore_errors=True)
        to = f"{path}.damaged-{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}"
        os.rename(path, to)
    except OSError as error:
        raise StoreError(
            f"{path} is damaged and cannot be renamed: {error.strerror}", f"stop the server, and move {path} away"
        ) from None
    return to


def delete(path: str) -> None:
    """Delete the folder of a database without opening it. A mount point is only emptied.

    Raises:
        StoreError: A server uses the folder, or it cannot be deleted.
    """
    if os.path.lexists(path):
        check_unused(path)
        path = os.path.realpath(path)
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno == errno.EBUSY and not os.listdir(path):
                return
            raise StoreError(f"{path} cannot be deleted: {error.strerror}", f"move {path} away") from None


def _check_room(path: str) -> None:
    """Raise OSError if the disk of a folder has too little room to open a database: ENOSPC, or the error of writing a
    test file.
    """
    found = os.statvfs(path)
    if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    probe = f"{path}/.room"
    disk = Disk()
    fd = disk.create(probe)
    try:
        disk.write(fd, bytes(_PROBE_BYTES))
    finally:
        os.close(fd)
        with suppress(OSError):
            os.unlink(probe)


def _no_room(path: str) -> StoreError:
    return StoreError(f"{path} is not opened: its disk has less than {MIN_FREE_BYTES >> 20} MiB free", _NO_ROOM_HINT)
