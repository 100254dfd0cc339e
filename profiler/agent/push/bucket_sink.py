"""A bucket, by fsspec (extra [push]) and the package of its kind, such as s3fs: objects DAY/SERVICE/END_NS-UUID.pb.gz.
The package finds credentials in its own files.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyprof.agent.push.responses import NotSent
from pyprof.agent.segment_names import SegmentName


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
        except PermissionError:
            raise NotSent("unauthorized", "no permission") from None
        except Exception as error:  # each package has its own exceptions
            raise NotSent("otherwise", type(error).__name__) from None

    def _opened(self) -> tuple[Any, str]:
        found: tuple[Any, str] = import_module("fsspec").url_to_fs(self._url, **self._options)
        return found
