"""Clients of HTTP servers: Breakpad symbol files by NAME/ID, debug files by build ID (debuginfod), with local caches.

A file is downloaded once. A file that the server does not have is requested once in a run. No further request in the
run goes to a server that does not respond, takes too long, or sends something else than a symbol file. Otherwise a
recording would wait for such a server at every module. A server is not trusted: its responses are limited in time and
size, and it may redirect a few times only.

Each file in the cache is checked for the build ID that was requested. Servers are not trusted: their responses are
limited in size and, all together, in time.
Source: debuginfod(8), "WEBAPI"; debuginfod_find_debuginfo(3), "ENVIRONMENT VARIABLES", "CACHE".
"""

from __future__ import annotations

import gzip
import http.client
import os
import queue
import shutil
import socket
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.message import Message
from functools import partial
from typing import IO, cast

from pyprof.errors import FormatError
from pyprof.model.loss_reason_texts import problem
from pyprof.objfile import io_deadline
from pyprof.objfile.breakpad_symbol_search import copy_text
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.objfile.untrusted_file_access import debuginfod_cache, is_build_id
from pyprof.problem_counters import Diagnostics

TIMEOUT_S = 10.0
"""Timeout in seconds for a symbol server's connection, for a pause within a response, and for all of its headers
together.
"""
MIN_BYTES_PER_S = 10 << 10
"""Minimum average speed in bytes per second of a symbol server's response that takes longer than TIMEOUT_S."""
MAX_SECONDS = 300.0
"""Maximum time in seconds that one run of pyprof spends on one symbol server."""
MAX_REDIRECTS = 3


def default_cache_dir() -> str:
    """Return the directory for downloaded symbol files: $XDG_CACHE_HOME/pyprof/symbols."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pyprof", "symbols")


class SymbolServer:
    """An HTTP server of Breakpad symbol files. Paths of symbol files are appended to its URL."""

    def __init__(self, url: str, diagnostics: Diagnostics, cache: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._diagnostics = diagnostics
        self._cache = cache or default_cache_dir()
        self._answers = True
        self._asked: set[str] = set()
        self._seconds = 0.0

    def fetch(self, name: str, module_id: str, file: str) -> str | None:
        """Return the path of a symbol file in the cache, after a download if necessary, or None if the server has none.

        Args:
            name: Name of the module.
            module_id: Breakpad identifier of the module.
            file: Name of the symbol file in the store.
        """
        parts = (name, module_id, file)
        path = os.path.join(self._cache, *parts)
        if os.path.isfile(path):
            return path
        if not self._answers or path in self._asked:
            return None
        self._asked.add(path)
        url = "/".join([self.url, *(urllib.parse.quote(part, safe="") for part in parts)])
        begin = time.monotonic()
        try:
            self._fetch(url, path)
            return path
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (403, 404, 410):
                self._fail(f"answered {error.code} for {url}")
        except FormatError as error:
            self._fail(str(error))
        except (OSError, http.client.HTTPException, ValueError, zlib.error, EOFError) as error:
            self._fail(f"{url}: {getattr(error, 'reason', error)}")
        finally:
            self._seconds += time.monotonic() - begin
        return None

    def forget(self, path: str) -> None:
        """Delete a downloaded symbol file from the cache, because it is not that of the wanted module."""
        with suppress(OSError):
            os.unlink(path)

    def _fetch(self, url: str, path: str) -> None:
        """Download a symbol file in a separate thread.

        When the recording must end, the thread is abandoned, even during the lookup of the server's host name.
        """
        left = MAX_SECONDS - self._seconds
        with RequestDeadline(min(TIMEOUT_S, left)) as deadline:
            call = _Call(partial(self._download, url, path, deadline, left))
            call.start()
            if not io_deadline.wait_for_event(call.ended, left + TIMEOUT_S):
                raise TimeoutError("no answer by the end of the recording")
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # the exception refers to the frame that refers to the call

    def _download(self, url: str, path: str, deadline: RequestDeadline, left: float) -> None:
        request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip", "User-Agent": "pyprof"})  # noqa: S310 - the scheme is checked before
        with build_opener(deadline).open(request, timeout=TIMEOUT_S) as answer:
            deadline.set_remaining(left)
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            with write_new_file(folder, path) as file:
                body = MinRateBody(answer)
                packed = answer.headers.get("Content-Encoding", "").lower() == "gzip"
                copy_text(gzip.GzipFile(fileobj=cast(IO[bytes], body)) if packed else body, file, url)
                if deadline.passed:
                    raise TimeoutError(f"over {MAX_SECONDS:.0f} s in all")
                expected = answer.headers.get("Content-Length", "")
                if expected.isdigit() and body.size < int(expected):
                    raise ValueError(f"{body.size} bytes where {expected} were promised")

    def _fail(self, text: str) -> None:
        self._answers = False
        self._diagnostics.count("symbol_server_timeout")
        self._diagnostics.problem(self.url, problem("symbol_server_silent", why=text))


class _Call(threading.Thread):
    """A thread that runs a download and stores the exception that it raises. An abandoned download's exception is
    lost.
    """

    def __init__(self, job: Callable[[], None]) -> None:
        super().__init__(name="pyprof symbols", daemon=True)
        self.error: Exception | None = None
        self.ended = threading.Event()
        self._job = job

    def run(self) -> None:
        try:
            self._job()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        self.ended.set()


class MinRateBody:
    """The body of a symbol server's response, which must not be slower than MIN_BYTES_PER_S on average."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self._begin = time.monotonic()
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """Return bytes of the response that have arrived. Wait for at least one; return b"" at the end.

        Raises:
            OSError: The connection failed, or the response is too slow.
        """
        data = self._answer.read1(size)
        self.size += len(data)
        seconds = time.monotonic() - self._begin
        if seconds > TIMEOUT_S and self.size < MIN_BYTES_PER_S * seconds:
            raise TimeoutError(f"{self.size} bytes in {seconds:.0f} s: too slow")
        return data


class RequestDeadline:
    """A time limit for an HTTP request. When it passes, the connections of the request are shut down.

    A server that sends one byte per second never exceeds a socket's timeout. The connections are kept as duplicates of
    their descriptors, because TLS makes a new socket out of one.

    Attributes:
        passed: The deadline has passed. Data that was read after it may be incomplete.
    """

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.passed = False
        self._timer = self._started(seconds)

    def __enter__(self) -> RequestDeadline:
        return self

    def __exit__(self, *_: object) -> None:
        """Shut down the connections of the request that are still open."""
        self._timer.cancel()
        self._end()
        with self._lock:
            for known in self._sockets:
                known.close()
            self._sockets.clear()

    def watch_connection(self, connection: socket.socket) -> None:
        """Register a connection of the request, so that it is closed when the deadline passes.

        Raises:
            TimeoutError: The deadline has passed already.
        """
        with self._lock:
            if self.passed:
                raise TimeoutError("timed out")
            self._sockets.append(connection.dup())

    def set_remaining(self, seconds: float) -> None:
        """Set the deadline of the HTTP request to `seconds` from now."""
        self._timer.cancel()
        self._timer = self._started(seconds)

    def _started(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(max(seconds, 0.0), self._end)
        timer.daemon = True
        timer.start()
        return timer

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            for known in self._sockets:
                with suppress(OSError):
                    known.shutdown(socket.SHUT_RDWR)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows HTTP redirects to http and https only, a few times, and never from https to http.

    Credentials are never sent.
    """

    max_redirections = MAX_REDIRECTS
    max_repeats = MAX_REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urllib.parse.urlsplit(newurl).scheme.lower()
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise ValueError(f"redirected from {req.type} to {scheme or 'nowhere'}, not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def build_opener(
    deadline: RequestDeadline,
    context: ssl.SSLContext | None = None,
    proxies: Mapping[str, str] | None = None,
    redirects: bool = True,
    response: type[http.client.HTTPResponse] = http.client.HTTPResponse,
) -> urllib.request.OpenerDirector:
    """Return an opener like urllib's, without the schemes file:, ftp: and data:.

    Args:
        deadline: Deadline of the request.
        context: TLS context, None for the default.
        proxies: Proxies by scheme, None for those of the environment.
        redirects: Follow redirects. Otherwise they raise HTTPError.
        response: Class that reads responses.
    """

    class Connection(http.client.HTTPConnection):
        response_class = response

        def connect(self) -> None:
            super().connect()
            deadline.watch_connection(self.sock)

        def _tunnel(self) -> None:
            """Register the connection's socket with the deadline before a proxy is asked for a tunnel (CONNECT), so
            that the deadline covers the proxy's response, too.
            """
            deadline.watch_connection(self.sock)
            super()._tunnel()  # type: ignore[misc]

    class SafeConnection(http.client.HTTPSConnection, Connection):
        """A TLS connection. Its connect() calls that of Connection for the plain socket, then starts TLS on it."""

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(SafeConnection, req, context=context)

    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if proxies is None else dict(proxies)),
        Http(),
        Https(),
        *((_Redirects(),) if redirects else ()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        director.add_handler(handler)
    return director


@contextmanager
def write_new_file(folder: str, path: str) -> Iterator[IO[bytes]]:
    """Create a file that gets its name only when it is complete.

    On file systems with unnamed files (O_TMPFILE), nothing remains if the process is killed before.
    """
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                yield file
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return
    with open(fd, "wb") as nameless:
        yield nameless
        nameless.flush()
        with suppress(FileExistsError):  # another pyprof was faster
            # src_dir_fd makes Python call linkat(2), which can follow the link in /proc. link(2) cannot.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


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
    """Return the size in bytes of a file in debuginfod's cache, 0 if it is missing.

    An empty file in the cache means that no server had the file.
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
    request = urllib.request.Request(url, headers={"User-Agent": "pyprof"})  # noqa: S310 - the scheme is checked before
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
