"""A client of debuginfod servers, which downloads files by build ID into the cache that other clients share.

Each file in the cache is checked for the build ID that was requested. Servers are not trusted: their responses are
limited in size and, all together, in time.
Source: debuginfod(8), "WEBAPI"; debuginfod_find_debuginfo(3), "ENVIRONMENT VARIABLES", "CACHE".
"""

from __future__ import annotations

import http.client
import os
import queue
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO

from pyprof.errors import FormatError
from pyprof.objfile.breakpad.symbol_server import TIMEOUT_S, MinRateBody, RequestDeadline, build_opener, write_new_file
from pyprof.objfile.file_access import debuginfod_cache, is_build_id
from pyprof.objfile.formats import open_object_file

KINDS = ("debuginfo", "executable")
"""Kinds of files that a debuginfod server may have for a build ID. A program that was never stripped has no separate
debug file.
"""
MAX_BYTES = 8 << 30
"""Maximum size in bytes of one file that is downloaded from debuginfod."""
_CHUNK = 1 << 20
_AT_ONCE = 4


def server_urls() -> tuple[str, ...]:
    """Return the http and https URLs in DEBUGINFOD_URLS, which separates them by spaces."""
    words = os.environ.get("DEBUGINFOD_URLS", "").split()
    return tuple(url.rstrip("/") for url in words if url.startswith(("http://", "https://")))


def cached_path(build_id: str, kind: str) -> str:
    """Return the path of a file in debuginfod's cache, which need not exist."""
    return os.path.join(debuginfod_cache(), build_id, kind)


def download_debug_files(build_ids: Iterable[str], urls: Sequence[str], seconds: float) -> list[str]:
    """Download files from debuginfod servers into the cache, and return descriptions of errors.

    Args:
        build_ids: Build IDs in lower-case hex.
        urls: Servers in the order of the search.
        seconds: Timeout for all files together. A download that takes longer continues, and is in the cache next time.
    """
    wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
    for build_id in dict.fromkeys(build_ids):
        if is_build_id(build_id) and not any(_size(cached_path(build_id, kind)) for kind in KINDS):
            wanted.put(build_id)
    until = time.monotonic() + seconds
    errors: list[str] = []
    silent: set[str] = set()

    def work() -> None:
        with suppress(queue.Empty):
            while time.monotonic() < until:
                _fetch_one(wanted.get_nowait(), urls, until, silent, errors)

    workers = [threading.Thread(target=work, daemon=True, name="pyprof debuginfod") for _ in range(_AT_ONCE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(until - time.monotonic(), 0))
    if any(worker.is_alive() for worker in workers) or not wanted.empty():
        errors.append(f"not all files came within {seconds:g} s")
    return errors.copy()


def _size(path: str) -> int:
    """Return the size of a cached debuginfod file in bytes, 0 if it is missing.

    An empty file in the cache means that servers had none.
    """
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _fetch_one(build_id: str, urls: Sequence[str], until: float, silent: set[str], errors: list[str]) -> None:
    """Download the debuginfod files of one build ID.

    Args:
        build_id: The build ID.
        urls: Servers in the order of the search.
        until: Deadline on the monotonic clock, in seconds.
        silent: Servers that failed. They get no further requests.
        errors: Receives descriptions of errors.
    """
    for kind in KINDS:
        for url in urls:
            if url in silent:
                continue
            try:
                _download(f"{url}/buildid/{build_id}/{kind}", build_id, kind, until)
                return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in (403, 404, 410):
                    continue
                problem = f"answered {error.code}"
            except FormatError as error:
                problem = str(error)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(getattr(error, "reason", error))
            silent.add(url)
            errors.append(f"{url} is not asked again: {problem}")


def _download(url: str, build_id: str, kind: str, until: float) -> None:
    left = until - time.monotonic()
    request = urllib.request.Request(url, headers={"User-Agent": "pyprof"})
    with (
        RequestDeadline(left) as deadline,
        build_opener(deadline).open(request, timeout=min(TIMEOUT_S, left)) as answer,
    ):
        path = cached_path(build_id, kind)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        if os.path.exists(path):  # an empty file, which means that servers had none
            os.unlink(path)
        with write_new_file(os.path.dirname(path), path) as file:
            size = _copied(MinRateBody(answer), file)
            expected = answer.headers.get("Content-Length", "")
            if deadline.passed or (expected.isdigit() and size < int(expected)):
                raise TimeoutError(f"{url} was received only in part")
            file.flush()
            if open_object_file(f"/proc/self/fd/{file.fileno()}").build_id != build_id:
                raise FormatError(url, 0, "is the file of another build-id")


def _copied(body: MinRateBody, file: IO[bytes]) -> int:
    size = 0
    while data := body.read(_CHUNK):
        size += len(data)
        if size > min(MAX_BYTES, shutil.disk_usage(f"/proc/self/fd/{file.fileno()}").free):
            raise FormatError("debuginfod", size, "a file that is too large")
        file.write(data)
    return size
