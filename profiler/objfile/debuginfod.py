"""A client of debuginfod servers: files by their build-id, into the cache that other clients use, too.

In: build-ids. Out: files in the cache, each proved to have the build-id that was asked for. Source: debuginfod(8),
"WEBAPI"; debuginfod_find_debuginfo(3), "ENVIRONMENT VARIABLES", "CACHE".
A server is foreign: its answers are bounded in bytes and, all together, in seconds.
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
from pyprof.objfile.breakpad.symbol_server import TIMEOUT_S, Paced, RequestDeadline, new_file, opener
from pyprof.objfile.opener import debuginfod_cache, is_build_id
from pyprof.objfile.opening import open_object_file

KINDS = ("debuginfo", "executable")
"""What a server may have of a build-id. A program that was never stripped has no debug file of its own."""
MOST_BYTES = 8 << 30
"""Of one file."""
_CHUNK = 1 << 20
_AT_ONCE = 4


def server_urls() -> tuple[str, ...]:
    """DEBUGINFOD_URLS, words between spaces; only http and https are asked."""
    words = os.environ.get("DEBUGINFOD_URLS", "").split()
    return tuple(url.rstrip("/") for url in words if url.startswith(("http://", "https://")))


def cached(build_id: str, kind: str) -> str:
    """Where the cache has a file, if it has it."""
    return os.path.join(debuginfod_cache(), build_id, kind)


def fetch(build_ids: Iterable[str], urls: Sequence[str], seconds: float) -> list[str]:
    """Have these build-ids (lower-case hex) in the cache, as far as servers have them. Returns what went wrong.

    seconds: for all of them together. What comes later is left to itself, and is in the cache for the next time.
    """
    wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
    for build_id in dict.fromkeys(build_ids):
        if is_build_id(build_id) and not any(_size(cached(build_id, kind)) for kind in KINDS):
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
    """An empty file of the cache means that servers had none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _fetch_one(build_id: str, urls: Sequence[str], until: float, silent: set[str], errors: list[str]) -> None:
    """silent: servers that failed, which are not asked again."""
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
    with RequestDeadline(left) as deadline, opener(deadline).open(request, timeout=min(TIMEOUT_S, left)) as answer:
        path = cached(build_id, kind)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        if os.path.exists(path):  # an empty one
            os.unlink(path)
        with new_file(os.path.dirname(path), path) as file:
            size = _copied(Paced(answer), file)
            expected = answer.headers.get("Content-Length", "")
            if deadline.passed or (expected.isdigit() and size < int(expected)):
                raise TimeoutError(f"{url} came in part only")
            file.flush()
            if open_object_file(f"/proc/self/fd/{file.fileno()}").build_id != build_id:
                raise FormatError(url, 0, "is the file of another build-id")


def _copied(body: Paced, file: IO[bytes]) -> int:
    size = 0
    while data := body.read(_CHUNK):
        size += len(data)
        if size > min(MOST_BYTES, shutil.disk_usage(f"/proc/self/fd/{file.fileno()}").free):
            raise FormatError("debuginfod", size, "a file that is too large")
        file.write(data)
    return size
