"""A local HTTP receiver whose responses a test chooses, and segments to send to it."""

from __future__ import annotations

import io
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer

from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.wire.push_client import Credentials, Endpoint
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.profile import Profile
from tests.exporters.profiles import golden


@dataclass(slots=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Said:
    """A response of the test receiver.

    Attributes:
        endless: Whether the receiver repeats the body until the client closes the connection.
        silent: Whether the receiver never sends a response.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    endless: bool = False
    silent: bool = False


@dataclass(slots=True)
class Receiver:
    url: str
    asked: list[Asked] = field(default_factory=list)

    def endpoint(self, credentials: Credentials | None = None, proxy: str = "") -> Endpoint:
        return Endpoint(self.url, credentials or Credentials(), proxy=proxy, timeout_s=20.0)


@contextmanager
def receiver(answer: Callable[[Asked], Said], tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked = Asked(self.path, dict(self.headers.items()), body)
            found.asked.append(asked)
            said = answer(asked)
            if said.silent:
                over.wait(60)
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if not said.endless:
                self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            try:
                self.wfile.write(said.body)
                while said.endless:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found = Receiver(f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def talker(words: Iterable[bytes]) -> Iterator[str]:
    """Run a TCP server that sends these words one by one to each client and then closes. Yield its address."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(1 << 16)
                for word in words:
                    self.request.sendall(word)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def proto(status: int = 200, kind: str = "application/proto", body: bytes = b"") -> Said:
    return Said(status, {"Content-Type": kind}, body)


def labelled(labels: Sequence[tuple[str, str]] = (("env", "test"), ("service", "web"))) -> Profile:
    """Return the golden profile with these rule labels on all threads, as the agent produces it."""
    profile = golden()
    threads = tuple(replace(each, labels=tuple(labels)) for each in profile.threads)
    return replace(profile, threads=threads)


def segment(profile: Profile | None = None, service: str = "web", end_ns: int = 10**18) -> tuple[SegmentName, bytes]:
    out = io.BytesIO()
    pprof.write(profile or labelled(), out, ExportOptions(evidence=True))
    return SegmentName.new(service, end_ns), out.getvalue()
