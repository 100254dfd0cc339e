"""Sinks that store segments unchanged, as DAY/SERVICE/END_NS-UUID.pb.gz: a folder, a bucket, pyprof's own server.

Other users may create names in a folder, for example of another machine. So each folder is opened relative to a
descriptor, and links are not followed. A bucket needs fsspec (extra [push]) and the package of its kind, such as s3fs,
which finds credentials in its own files. The server answers 409 if it has the segment already.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any

from pyprof.exporters import output_file
from pyprof.fleet.file_system import Disk
from pyprof.fleet.wire.push_client import Endpoint, HttpClient
from pyprof.fleet.wire.push_responses import NotSent
from pyprof.fleet.wire.segment_names import SegmentName

PATH = "/api/v1/segments"
_THERE = 409


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


class ServerSink:
    def __init__(self, endpoint: Endpoint) -> None:
        self._client = HttpClient(endpoint)

    def send(self, name: SegmentName, data: bytes) -> None:
        """Send a segment to pyprof's own server. The folder's name has only characters that a path may contain; others
        are %XX already.
        """
        self._client.post(f"{PATH}/{name.path}", data, {"Content-Type": "application/octet-stream"}, (_THERE,))


class BucketSink:
    """A sink that stores segments in a bucket; options are those of the bucket's package, such as endpoint_url."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self._url, self._options = url.rstrip("/"), options

    def send(self, name: SegmentName, data: bytes) -> None:
        try:
            files, path = self._opened()
            if files.protocol in ("file", ("file", "local")):
                files.makedirs(f"{path}/{name.day}/{name.folder}", exist_ok=True)
            files.pipe_file(f"{path}/{name.path}", data)
        except (NotSent, OSError):
            raise
        except ImportError as error:
            raise NotSent("no_package", str(error)) from None
        except Exception as error:  # noqa: BLE001 - each package has its own exceptions
            raise NotSent("otherwise", type(error).__name__) from None

    def _opened(self) -> tuple[Any, str]:
        found: tuple[Any, str] = import_module("fsspec").url_to_fs(self._url, **self._options)
        return found
