"""Tests of hostile symbol servers that send false, slow, endless or redirected responses: their cost is bounded."""

from __future__ import annotations

import gzip
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof.objfile import breakpad_symbol_search, io_deadline, symbol_servers
from pyprof.objfile.symbol_servers import MAX_REDIRECTS, SymbolServer
from pyprof.problem_counters import Diagnostics

pytestmark = pytest.mark.system

NAMES = ("app", "0" * 33, "app.sym")
TEXT = b"MODULE Linux x86_64 " + b"0" * 33 + b" app\nPUBLIC 1000 0 f\n"
Serve = Callable[[socket.socket, str], None]
"""A function of (connection, requested path) that sends the response."""


@contextmanager
def serving(serve: Serve) -> Iterator[tuple[str, list[str]]]:
    """Run a server with a thread for each connection. Yield its URL and the list of requested paths."""
    asked: list[str] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                path = connection.recv(1 << 16).split(b" ")[1].decode()
                asked.append(path)
                serve(connection, path)
            except OSError:  # pyprof has closed the connection
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def reply(body: bytes, *headers: str, code: int = 200) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {code} X", "Connection: close", *headers, "", "")).encode() + body


def fetch(serve: Serve, cache: Path) -> tuple[str | None, str, list[str]]:
    """Fetch a file and return (its path, the reported problem, the requested paths)."""
    diagnostics = Diagnostics()
    with serving(serve) as (url, asked):
        path = SymbolServer(url, diagnostics, str(cache)).fetch(*NAMES)
        problems = [problem.text for found in diagnostics.problems.values() for problem in found]
    if path is None:
        assert [file for file in cache.rglob("*") if file.is_file()] == []
    return path, "; ".join(problems), asked


def drip(head: bytes) -> Serve:
    def serve(connection: socket.socket, path: str) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"a")
            time.sleep(0.02)

    return serve


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", reply(TEXT), reply(TEXT, "Content-Length: 900000")])
def test_server_that_drips_is_left(head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send single bytes within the socket's timeout, which therefore never expires."""
    monkeypatch.setattr(symbol_servers, "TIMEOUT_S", 0.3)
    path, said, _ = fetch(drip(head), tmp_path)
    assert path is None
    assert "not asked again" in said


def test_seconds_of_all_files_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbol_servers, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(symbol_servers, "MIN_BYTES_PER_S", 0)
    path, said, _ = fetch(drip(reply(TEXT)), tmp_path)
    assert path is None
    assert "in all" in said


@pytest.mark.parametrize(
    "body", [b"<!DOCTYPE html><html>Log in</html>", b"", b"MODU", gzip.compress(b"<html>", mtime=0)]
)
def test_answer_that_is_no_symbol_file_is_not_kept(body: bytes, tmp_path: Path) -> None:
    path, said, _ = fetch(lambda connection, _: connection.sendall(reply(body)), tmp_path)
    assert path is None
    assert "no symbol file" in said


@pytest.mark.parametrize("headers", [("Content-Encoding: gzip",), ()])
def test_bomb_ends_after_one_line(headers: tuple[str, ...], tmp_path: Path) -> None:
    """Send a gigabyte of zeros compressed to one megabyte."""
    bomb = gzip.compress(TEXT + bytes(1 << 24)) + gzip.compress(bytes(1 << 24)) * 63
    path, said, _ = fetch(lambda connection, _: connection.sendall(reply(bomb, *headers)), tmp_path)
    assert path is None
    assert "a line of over" in said


def test_file_that_would_fill_the_disk_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakpad_symbol_search, "RESERVE", 1.0)
    path, said, _ = fetch(lambda connection, _: connection.sendall(reply(TEXT)), tmp_path)
    assert path is None
    assert "fill the disk" in said


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,MODULE", "gopher://x"])
def test_redirect_to_another_scheme_is_not_followed(place: str, tmp_path: Path) -> None:
    path, said, asked = fetch(
        lambda connection, _: connection.sendall(reply(b"", f"Location: {place}", code=302)), tmp_path
    )
    assert path is None
    assert "redirected from http to" in said or "answered 302" in said
    assert len(asked) == 1


@pytest.mark.parametrize("times", [1, MAX_REDIRECTS, MAX_REDIRECTS + 1, 1000])
def test_redirects_are_followed_a_few_times(times: int, tmp_path: Path) -> None:
    def serve(connection: socket.socket, path: str) -> None:
        number = int(path.partition("?")[2] or 0)
        more = number < times
        connection.sendall(reply(b"", f"Location: /x?{number + 1}", code=302) if more else reply(TEXT))

    path, _, asked = fetch(serve, tmp_path)
    assert (path is not None) == (times <= MAX_REDIRECTS)
    assert len(asked) == min(times, MAX_REDIRECTS) + 1


def test_redirect_carries_no_credentials_and_never_leaves_tls(tmp_path: Path) -> None:
    handler = symbol_servers._Redirects()
    request = urllib.request.Request("https://symbols.example/a", headers={"User-Agent": "pyprof"})
    with pytest.raises(ValueError, match="from https to http"):
        handler.redirect_request(request, None, 302, "", None, "http://symbols.example/b")  # type: ignore[arg-type]
    followed = handler.redirect_request(request, None, 302, "", {}, "https://other.example/b")  # type: ignore[arg-type]
    assert followed is not None
    assert {name.lower() for name, _ in followed.header_items()} == {"user-agent"}


def test_process_that_is_killed_while_it_fetches_leaves_no_file(tmp_path: Path) -> None:
    begun = threading.Event()

    def serve(connection: socket.socket, path: str) -> None:
        connection.sendall(reply(TEXT, "Content-Length: 900000"))
        begun.set()
        connection.recv(1)

    with serving(serve) as (url, _):
        child = os.fork()
        if child == 0:
            SymbolServer(url, Diagnostics(), str(tmp_path)).fetch(*NAMES)
            os._exit(1)
        assert begun.wait(30)
        folder = tmp_path / NAMES[0] / NAMES[1]
        while not folder.exists():
            time.sleep(0.01)
        os.kill(child, 9)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == 9
    assert list(folder.iterdir()) == []


def test_server_is_left_when_a_recording_has_no_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch after the recording's deadline: the unwinder waits for the fetch and cannot be interrupted."""
    monkeypatch.setattr(io_deadline, "_over", bool)
    silent = threading.Event()

    def serve(connection: socket.socket, path: str) -> None:
        io_deadline.set_expiry_check(lambda: True)
        silent.wait(symbol_servers.TIMEOUT_S)

    path, said, asked = fetch(serve, tmp_path)
    silent.set()
    assert path is None
    assert len(asked) == 1
    assert "no answer by the end of the recording" in said


def flood(connection: socket.socket, path: str) -> None:
    connection.sendall(reply(b""))
    while True:
        connection.sendall(bytes(1 << 16))


@pytest.mark.parametrize(
    ("serve", "said"),
    [(drip(b""), ""), (drip(reply(b"")), ""), (flood, "a file that is too large")],
    ids=["its headers", "its file", "floods"],
)
def test_debuginfod_server_that_drips_or_floods_is_left(
    serve: Serve, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path))
    monkeypatch.setattr(symbol_servers, "MAX_BYTES", 1 << 20)
    with serving(serve) as (url, asked):
        problems = symbol_servers.download_debug_files(["ab" * 20], [url], 0.5)
    assert asked
    assert any(said in problem for problem in problems), problems
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
