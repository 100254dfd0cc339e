"""An HTTP server for the pages /metrics, /healthz and /readyz of a running agent, on 127.0.0.1 only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pyprof.errors import UsageError

ADDRESS = "127.0.0.1"
_PATIENCE_S = 5.0
_MAX_AT_ONCE = 8
_LOOK_S = 1.0
"""Interval in seconds in which the agent's HTTP server checks whether it must stop."""
Page = Callable[[], tuple[int, str, str]]
"""Function that returns status, content type and text of an HTTP response."""


class HttpPages:
    """An HTTP server on 127.0.0.1 with pages of the agent, such as /metrics.

    Attributes:
        port: The port that it uses.
    """

    def __init__(self, port: int, pages: dict[str, Page]) -> None:
        """Listen for HTTP requests on a port of 127.0.0.1.

        Args:
            port: 0 for any free port.
            pages: Functions that return the pages, by path.

        Raises:
            UsageError: The port is in use.
        """
        room = threading.BoundedSemaphore(_MAX_AT_ONCE)
        answered: dict[int, socket.socket] = {}

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                known = f"{', '.join(pages)}\n"
                status, kind, text = page() if page is not None else (404, "text/plain", known)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Leave HTTP requests out of the log: the agent's log is about its recordings."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def process_request(self, request: object, client_address: object) -> None:
                """Serve an HTTP request. If many are being served, the oldest one is disconnected, because its client
                is slow.
                """
                assert isinstance(request, socket.socket)
                if len(answered) >= _MAX_AT_ONCE:
                    with suppress(OSError, StopIteration):  # it has just ended
                        next(iter(list(answered.values()))).shutdown(socket.SHUT_RDWR)
                if room.acquire(timeout=_PATIENCE_S):
                    answered[id(request)] = request
                    super().process_request(request, client_address)
                else:
                    self.shutdown_request(request)

            def process_request_thread(self, request: object, client_address: object) -> None:
                try:
                    super().process_request_thread(request, client_address)  # type: ignore[arg-type]
                finally:
                    answered.pop(id(request), None)
                    room.release()

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore errors of an HTTP client that has disconnected."""

        try:
            self._server = Server((ADDRESS, port), Handler)
        except OSError as error:
            raise UsageError(f"{ADDRESS}:{port} cannot be opened: {error.strerror}", "set another http.port") from None
        self.port = int(self._server.server_address[1])
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(_LOOK_S,), name="pyprof http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            # the server checks whether it must end when a client connects
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
