"""HTTP and gRPC requests to an untrusted receiver, with credentials from files. A response is limited in size and time.

A file with a token or password that other users may read or change is not used. A changed file is read again, so that a
token can be renewed while the agent runs.

Redirects are not followed, so credentials go only to the configured host. The proxy is the given one or that of the
environment (https_proxy, no_proxy). http.client reads headers, chunk framing and responses before the final one (1xx)
without a limit, so BoundedResponse limits all of them.

gRPC needs grpcio (the extra [push]). The channel is created on first use.
"""

from __future__ import annotations

import base64
import email.utils
import gzip
import http.client
import io
import os
import re
import socket
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import IO, Any
from urllib.parse import urlsplit

import orjson

from pyprof.errors import FormatError, OutputError
from pyprof.fleet.wire.push_response_verdicts import (
    NO_REASON,
    NotSent,
    RefusedForGood,
    StatedReason,
    judge_grpc,
    judge_http,
)
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.objfile.byte_source import open_regular
from pyprof.objfile.symbol_servers import RequestDeadline, build_opener

_MAX_BYTES = 1 << 16
_OTHERS = stat.S_IRWXO | stat.S_IWGRP


@dataclass(frozen=True, slots=True)
class Credentials:
    """Paths of the files with the credentials for a receiver: a bearer token, or the password of a user; "" for
    none.
    """

    token_file: str = ""
    user: str = ""
    password_file: str = ""

    def header(self) -> str:
        """Return the value of the Authorization header, "" for none.

        Raises:
            NotSent: A file cannot be used; the text has no secret.
        """
        if self.token_file:
            return f"Bearer {secret(self.token_file)}"
        if self.password_file:
            pair = f"{self.user}:{secret(self.password_file)}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""


def secret(path: str) -> str:
    """Return the token or password in the first line of a file.

    Raises:
        NotSent: The file cannot be used.
    """
    try:
        with open(open_regular(path), "rb") as file:
            mode = os.fstat(file.fileno())
            if mode.st_uid not in (0, os.geteuid()):
                raise NotSent("credentials", f"{path} is another user's file")
            if mode.st_mode & _OTHERS:
                raise NotSent("credentials", f"others may read or change {path}: chmod 600 {path}")
            text = file.read(_MAX_BYTES).split(b"\n", 1)[0].strip()
    except (OSError, FormatError) as error:
        raise NotSent("credentials", f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    if not text or not text.isascii() or not text.decode().isprintable():
        raise NotSent("credentials", f"{path}: its first line is not a token or password of printable characters")
    return text.decode()


MAX_ANSWER = 1 << 16
"""Maximum number of bytes of a receiver's response that are read."""
_MAX_KIND = 100
"""Maximum number of characters of a receiver's Content-Type that are logged."""
_REASON = re.compile(r"[a-z][a-z_]{0,39}", re.ASCII)
_MAX_TEXT = 200
"""Maximum number of characters of a receiver's message that are logged."""
MAX_WAIT_S = 3600.0
"""Maximum wait in seconds before a request is repeated, also if the receiver requests a longer wait."""
MAX_READ = 1 << 20
"""Maximum size in bytes of a receiver's HTTP response, including all framing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The URL, headers and limits of a receiver of segments.

    Attributes:
        url: http or https URL without a "/" at its end.
        ca_file: Path of a file with certificates of authorities, "" for the system's certificates.
        proxy: URL of the proxy, "" for that of the environment.
        timeout_s: Maximum time of a request in seconds.
        on_date: Function that receives the result of clock_ahead_s() for each response with a date.
    """

    url: str
    credentials: Credentials = field(default_factory=Credentials)
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    proxy: str = ""
    timeout_s: float = 30.0
    on_date: Callable[[float], None] = lambda ahead_s: None


@dataclass(frozen=True, slots=True)
class PushResponse:
    """The response of a receiver that has the segment. It has no body if its status is one that the caller of
    HttpClient.post() listed as accepted.
    """

    status: int
    kind: str
    body: bytes


class HttpClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def post(self, path: str, body: bytes, headers: Mapping[str, str], accepted: tuple[int, ...] = ()) -> PushResponse:
        """Send a POST request to a receiver.

        Args:
            path: Path below the URL.
            accepted: Statuses that also mean that the receiver has the segment.

        Raises:
            NotSent: The request must be repeated later.
            RefusedForGood: The receiver will never accept the request.
        """
        known = {"User-Agent": "pyprof", **self._endpoint.headers, **headers}
        if authorization := self._endpoint.credentials.header():
            known["Authorization"] = authorization
        request = urllib.request.Request(f"{self._endpoint.url}{path}", body, known, method="POST")  # noqa: S310 - the scheme is checked before
        seconds = self._endpoint.timeout_s
        with RequestDeadline(seconds) as deadline:
            try:
                return self._answered(request, deadline, accepted)
            except ssl.SSLError as error:
                raise NotSent("insecure", error.reason or "TLS failed") from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise _not_sent(error, deadline.passed, seconds) from None

    def _answered(
        self, request: urllib.request.Request, deadline: RequestDeadline, taken: tuple[int, ...]
    ) -> PushResponse:
        proxy = self._endpoint.proxy
        proxies = {"http": proxy, "https": proxy} if proxy else None
        began_s = time.time()
        director = build_opener(deadline, self._context(), proxies, redirects=False, response=BoundedResponse)
        try:
            with director.open(request, timeout=self._endpoint.timeout_s) as answer:
                self._compare_clocks(answer.headers.get("Date", ""), began_s)
                judge_http(answer.status)
                found = answer.read(MAX_ANSWER + 1)
                kind = answer.headers.get_content_type()[:_MAX_KIND]
        except urllib.error.HTTPError as error:
            with error:
                self._compare_clocks(error.headers.get("Date", ""), began_s)
                if error.code not in taken:
                    stated = stated_reason(error.read(MAX_ANSWER))
                    judge_http(error.code, wait_s(error.headers.get("Retry-After", "")), stated)
            return PushResponse(error.code, "", b"")
        if len(found) > MAX_ANSWER:
            raise NotSent("nonsense", f"an answer of more than {MAX_ANSWER} bytes")
        if deadline.passed or answer.length:
            raise http.client.IncompleteRead(found)
        return PushResponse(answer.status, kind, found)

    def _compare_clocks(self, date: str, began_s: float) -> None:
        ahead_s = clock_ahead_s(date, began_s, time.time())
        if ahead_s is not None:
            self._endpoint.on_date(ahead_s)

    def _context(self) -> ssl.SSLContext | None:
        if not self._endpoint.url.startswith("https:"):
            return None
        return ssl.create_default_context(cadata=ca(self._endpoint.ca_file) or None)


def stated_reason(body: bytes) -> StatedReason:
    """Parse the reason from the JSON body of an HTTP refusal ({"reason": NAME, "error": TEXT}). The body is
    untrusted.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return NO_REASON
    name = found.get("reason") if isinstance(found, dict) else None
    if not isinstance(name, str) or not _REASON.fullmatch(name):
        return NO_REASON
    text = found.get("error")
    shown = text[:_MAX_TEXT] if isinstance(text, str) else ""
    return StatedReason(name, "".join(letter if letter.isprintable() else "?" for letter in shown))


def _not_sent(error: Exception, passed: bool, seconds: float) -> NotSent:
    cause = getattr(error, "reason", error)
    if passed or isinstance(cause, TimeoutError):
        return NotSent("timeout", f"no answer in {seconds:g} s")
    if isinstance(cause, ssl.SSLError):
        return NotSent("insecure", getattr(cause, "verify_message", "") or cause.reason or "TLS failed")
    if isinstance(cause, OSError):
        return NotSent("unreachable", cause.strerror or type(cause).__name__)
    return NotSent("nonsense", f"not an HTTP response: {type(cause).__name__}")


def ca(path: str) -> str:
    """Read the certificates (PEM) from a file of certification authorities, "" if no file is configured.

    Raises:
        NotSent: The file cannot be read.
    """
    if not path:
        return ""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(1 << 20).decode("ascii", "replace")
    except (OSError, ValueError) as error:
        raise NotSent("insecure", f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from None


def wait_s(text: str) -> float:
    """Parse a Retry-After header, which has seconds or a date (RFC 9110, 10.2.3). Return seconds, 0 if it has
    neither.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_WAIT_S)
    try:
        until = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return 0.0
    return min(max(until - time.time(), 0.0), MAX_WAIT_S)


def clock_ahead_s(date: str, began_s: float, ended_s: float) -> float | None:
    """Return by how many seconds at least this machine's clock is ahead of an HTTP receiver's clock, None if the
    response has no date.

    Args:
        date: Date header (RFC 9110, 6.6.1) in whole seconds, from some time during the request.
        began_s: Start of the request since the epoch, by this machine's clock.
        ended_s: Arrival of the response since the epoch, by this machine's clock.
    """
    try:
        said_s = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return max(began_s - said_s - 1, 0.0) + min(ended_s - said_s, 0.0)


class BoundedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **words: Any) -> None:
        super().__init__(sock, *args, **words)
        self._came = _Came(self.fp.detach())
        self.fp = io.BufferedReader(self._came)

    def begin(self) -> None:
        """Read the head of an HTTP response. Raise HTTPException if the connection ends within the head, which
        http.client would take for the end of the headers.
        """
        super().begin()
        if self._came.ended:
            raise http.client.IncompleteRead(b"")


class _Came(io.RawIOBase):
    """The bytes that a connection receives. It raises NotSent beyond MAX_READ bytes; `ended` is True at the end of the
    stream.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        self.ended = False
        self._raw, self._left = raw, MAX_READ

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        size = self._raw.readinto(buffer)
        self.ended = size == 0
        self._left -= size or 0
        if self._left < 0:
            raise NotSent("nonsense", f"an answer of more than {MAX_READ} bytes")
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class GrpcCall:
    """A gRPC method /package.Service/Method of a receiver, which can be called."""

    def __init__(self, endpoint: Endpoint, method: str) -> None:
        self._endpoint, self._method = endpoint, method
        self._call: Any = None
        self._errors: Any = None

    def __call__(self, body: bytes) -> bytes:
        """Call the gRPC method, and return the response's body.

        Raises:
            NotSent: The request must be repeated later.
            RefusedForGood: The receiver will never accept the request.
        """
        metadata = [(key.lower(), value) for key, value in self._endpoint.headers.items()]
        if authorization := self._endpoint.credentials.header():
            metadata.append(("authorization", authorization))
        call = self._call or self._made()
        try:
            answer: bytes = call(body, timeout=self._endpoint.timeout_s, metadata=metadata)
        except self._errors as error:
            judge_grpc(error.code().name)
            raise NotSent("nonsense", "a gRPC error with status OK") from None
        return answer

    def _made(self) -> Any:
        grpc = import_module("grpc")
        self._errors = grpc.RpcError
        url = urlsplit(self._endpoint.url)
        options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", MAX_ANSWER)]
        if self._endpoint.proxy:
            options.append(("grpc.http_proxy", self._endpoint.proxy))
        if url.scheme == "https":
            known = grpc.ssl_channel_credentials(ca(self._endpoint.ca_file).encode() or None)
            channel = grpc.secure_channel(url.netloc, known, options=options)
        else:
            channel = grpc.insecure_channel(url.netloc, options=options)
        self._call = channel.unary_unary(self._method)
        return self._call


_MAX_HEADER_BYTES = 1 << 12
"""Number of bytes at the beginning of a symbol file in which a client searches its build ID."""
_TIMEOUT_S = 300.0


def upload(url: str, token_file: str, write: Callable[[IO[bytes]], None]) -> None:
    """Upload a Breakpad symbol file to a pyprof server.

    Args:
        write: Function that writes the text of the symbol file.

    Raises:
        OutputError: The file has no build ID, or the server did not accept it.
    """
    text = io.BytesIO()
    write(text)
    build_id = re.search(rb"^INFO CODE_ID ([0-9A-F]+)$", text.getvalue()[:_MAX_HEADER_BYTES], re.MULTILINE)
    if build_id is None:
        raise OutputError("a symbol file without a build-id cannot be uploaded", "link it with --build-id")
    client = HttpClient(Endpoint(url.rstrip("/"), Credentials(token_file), timeout_s=_TIMEOUT_S))
    kind = {"Content-Type": "application/octet-stream"}
    try:
        client.post(f"/api/v1/symbols/{build_id[1].decode().lower()}", gzip.compress(text.getvalue(), 6), kind)
    except (NotSent, RefusedForGood) as error:
        raise OutputError(f"{url} refused it: {error}", "docs/server.md has its refusals") from None
