"""Symbol files of an HTTP server in the layout NAME/ID/NAME.sym, kept in a folder of this user.

A file is fetched once; what the server does not have is asked once a run. A server that does not answer is not asked
again in the run: a recording must not wait for it at every module.
"""

from __future__ import annotations

import gzip
import http.client
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from typing import IO, Protocol

from pyprof.diagnostics import Diagnostics

TIMEOUT_S = 10.0
"""Most seconds for a connection or a pause within an answer."""
MAX_SIZE = 1 << 32
CHUNK = 1 << 20


def default_cache() -> str:
    """Where fetched symbol files are kept: $XDG_CACHE_HOME/pyprof/symbols."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pyprof", "symbols")


class Stream(Protocol):
    """What content is read from."""

    def read(self, size: int, /) -> bytes: ...


class SymbolServer:
    """One server. url: where the layout begins."""

    def __init__(self, url: str, diagnostics: Diagnostics, cache: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._diagnostics = diagnostics
        self._cache = cache or default_cache()
        self._answers = True
        self._asked: set[str] = set()

    def fetch(self, name: str, module_id: str, file: str) -> str | None:
        """Path of the symbol file in the cache; None where the server has none. file: its name in the store."""
        parts = (name, module_id, file)
        path = os.path.join(self._cache, *parts)
        if os.path.isfile(path):
            return path
        if not self._answers or path in self._asked:
            return None
        self._asked.add(path)
        url = "/".join([self.url, *(urllib.parse.quote(part, safe="") for part in parts)])
        try:
            return self._download(url, path)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (403, 404, 410):
                self._fail(f"answered {error.code} for {url}")
        except (OSError, http.client.HTTPException, ValueError, zlib.error, EOFError) as error:
            self._fail(f"{url}: {getattr(error, 'reason', error)}")
        return None

    def _download(self, url: str, path: str) -> str:
        request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip", "User-Agent": "pyprof"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                try:
                    _copy(answer, file)
                    file.flush()
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        return path

    def _fail(self, text: str) -> None:
        self._answers = False
        self._diagnostics.count("symbol server does not answer")
        self._diagnostics.problem(self.url, f"not asked again: {text}")


def _copy(answer: http.client.HTTPResponse, file: IO[bytes]) -> None:
    """Raises ValueError where the answer is cut short or too long."""
    packed = answer.headers.get("Content-Encoding", "").lower() == "gzip"
    stream: Stream = gzip.GzipFile(fileobj=answer) if packed else answer
    size = 0
    while data := stream.read(CHUNK):
        size += len(data)
        if size > MAX_SIZE:
            raise ValueError(f"over {MAX_SIZE} bytes")
        file.write(data)
    expected = answer.headers.get("Content-Length", "")
    if not packed and expected.isdigit() and size != int(expected):
        raise ValueError(f"{size} bytes where {expected} were promised")
