"""Symbol files of an HTTP server in the layout NAME/ID/NAME.sym, kept in a folder of this user.

A file is fetched once; what the server does not have is asked once a run. A server that does not answer, that answers
what is no symbol file, or that takes too long is not asked again in the run: a recording must not wait for it at every
module.
A server is foreign: its answer is bounded in seconds and bytes, and redirects lead to few other places.
"""

from __future__ import annotations

import gzip
import http.client
import os
import socket
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from functools import partial
from typing import IO, cast

from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.model.reasons import problem
from pyprof.objfile import patience
from pyprof.objfile.breakpad.symbol_text import copy_text

TIMEOUT_S = 10.0
"""Most seconds for a connection, for a pause within an answer, and for its headers in all."""
SLOWEST = 10 << 10
"""Bytes a second that an answer must bring on average once TIMEOUT_S have passed."""
MAX_SECONDS = 300.0
"""Of one run, for one server, in all."""
MAX_REDIRECTS = 3


def default_cache() -> str:
    """Where fetched symbol files are kept: $XDG_CACHE_HOME/pyprof/symbols."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pyprof", "symbols")


class SymbolServer:
    """One server. url: where the layout begins."""

    def __init__(self, url: str, diagnostics: Diagnostics, cache: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._diagnostics = diagnostics
        self._cache = cache or default_cache()
        self._answers = True
        self._asked: set[str] = set()
        self._seconds = 0.0

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
        """A file that was fetched is not the one that was asked for: it is not kept. path: in the cache."""
        with suppress(OSError):
            os.unlink(path)

    def _fetch(self, url: str, path: str) -> None:
        """In a thread: what a recording that is told to end waits for can be left there, the look-up of the server's
        name, too.
        """
        left = MAX_SECONDS - self._seconds
        with RequestDeadline(min(TIMEOUT_S, left)) as deadline:
            call = _Call(partial(self._download, url, path, deadline, left))
            call.start()
            if not patience.answered(call.ended, left + TIMEOUT_S):
                raise TimeoutError("no answer by the end of the recording")
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # it holds the frame that holds the call

    def _download(self, url: str, path: str, deadline: RequestDeadline, left: float) -> None:
        request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip", "User-Agent": "pyprof"})
        with opener(deadline).open(request, timeout=TIMEOUT_S) as answer:
            deadline.move(left)
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            with new_file(folder, path) as file:
                body = Paced(answer)
                packed = answer.headers.get("Content-Encoding", "").lower() == "gzip"
                copy_text(gzip.GzipFile(fileobj=cast(IO[bytes], body)) if packed else body, file, url)
                if deadline.passed:
                    raise TimeoutError(f"over {MAX_SECONDS:.0f} s in all")
                expected = answer.headers.get("Content-Length", "")
                if expected.isdigit() and body.size < int(expected):
                    raise ValueError(f"{body.size} bytes where {expected} were promised")

    def _fail(self, text: str) -> None:
        self._answers = False
        self._diagnostics.count("symbol server does not answer")
        self._diagnostics.problem(self.url, problem("symbol_server_silent", why=text))


class _Call(threading.Thread):
    """error: what the job raised. Of one that is left nobody hears."""

    def __init__(self, job: Callable[[], None]) -> None:
        super().__init__(name="pyprof symbols", daemon=True)
        self.error: Exception | None = None
        self.ended = threading.Event()
        self._job = job

    def run(self) -> None:
        try:
            self._job()
        except Exception as error:
            self.error = error
        self.ended.set()


class Paced:
    """The body of an answer, which must not come slower than SLOWEST."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self._begin = time.monotonic()
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """Some bytes, as soon as there are any; none at the end. Raises OSError."""
        data = self._answer.read1(size)
        self.size += len(data)
        seconds = time.monotonic() - self._begin
        if seconds > TIMEOUT_S and self.size < SLOWEST * seconds:
            raise TimeoutError(f"{self.size} bytes in {seconds:.0f} s: too slow")
        return data


class RequestDeadline:
    """Ends the connections of a request at a time: a server that sends a byte a second never meets a socket's timeout.

    Connections are known by duplicates of their descriptors, since TLS makes a new socket of one.
    passed: it is over; what was read since may be cut short.
    """

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.passed = False
        self._timer = self._started(seconds)

    def __enter__(self) -> RequestDeadline:
        return self

    def __exit__(self, *_: object) -> None:
        """What is still under way ends, too."""
        self._timer.cancel()
        self._end()
        with self._lock:
            for known in self._sockets:
                known.close()
            self._sockets.clear()

    def watch(self, connection: socket.socket) -> None:
        """Raises TimeoutError when the time is over already."""
        with self._lock:
            if self.passed:
                raise TimeoutError("timed out")
            self._sockets.append(connection.dup())

    def move(self, seconds: float) -> None:
        """seconds: from now."""
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
    """To http and https only, a few times, never from https to http. No credentials are sent at all."""

    max_redirections = MAX_REDIRECTS
    max_repeats = MAX_REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urllib.parse.urlsplit(newurl).scheme.lower()
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise ValueError(f"redirected from {req.type} to {scheme or 'nowhere'}, not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def opener(
    deadline: RequestDeadline,
    context: ssl.SSLContext | None = None,
    proxies: Mapping[str, str] | None = None,
    redirects: bool = True,
    response: type[http.client.HTTPResponse] = http.client.HTTPResponse,
) -> urllib.request.OpenerDirector:
    """As urllib's, without file:, ftp: and data:. context: of TLS, proxies: by scheme, None for the usual ones.
    redirects: are they followed? Otherwise they are HTTPErrors. response: what answers are read by.
    """

    class Connection(http.client.HTTPConnection):
        response_class = response

        def connect(self) -> None:
            super().connect()
            deadline.watch(self.sock)

        def _tunnel(self) -> None:
            """Within connect(): what a proxy answers is under the deadline, too."""
            deadline.watch(self.sock)
            super()._tunnel()  # type: ignore[misc]

    class SafeConnection(http.client.HTTPSConnection, Connection):
        """HTTPSConnection.connect() calls ours for the plain socket, then begins TLS on it."""

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
def new_file(folder: str, path: str) -> Iterator[IO[bytes]]:
    """A file that has its name once it is whole. A process that is killed before leaves nothing where the file system
    has nameless files (O_TMPFILE).
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
            # a folder's descriptor makes it linkat(2), which can follow the link of /proc; link(2) cannot
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
