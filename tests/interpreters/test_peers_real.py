"""Tests of third-party programs against other profilers: Python frames of py-spy, native frames of pystack.

All compared threads stand still.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import PROGRAMS
from tests.interpreters.runs import dump
from tests.interpreters.test_peers import Frames, ours, py_spy

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

PEERS = PROGRAMS / "peers"
Frame = tuple[str, str, int]
LINE = re.compile(r'    \((Python|C)\) File "(.*)", line (\d+), in (.*?)(?: \(([^()]*)\))?$')


def packages() -> str:
    return str(from_pypi(sys.version_info[1], "gunicorn", "uvicorn", "pystack"))


@contextmanager
def running(*command: str, env: dict[str, str]) -> Iterator[psutil.Process]:
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=PEERS, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env},
    ) as process:  # fmt: skip
        found = psutil.Process(process.pid)
        try:
            yield found
        finally:
            for child in found.children(recursive=True):
                child.kill()
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def asking(port: int, end: bytes = b"\r\n") -> socket.socket:
    """Open a connection with a request that waits for its response."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n" + end)
            return connection
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def child(process: psutil.Process) -> psutil.Process:
    """Wait until the server, which listens earlier, has created its only child, and return it."""
    deadline = time.monotonic() + 60
    while not (children := process.children()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (only,) = children
    return only


def still(process: psutil.Process, until: str) -> dict[int, Frames]:
    """Wait until this function is on a stack and the stacks do not change, and return them."""
    deadline = time.monotonic() + 90
    while True:
        before = ours(process.pid)
        if any(name == until for frames in before.values() for name, _, _ in frames) and ours(process.pid) == before:
            return before
        assert time.monotonic() < deadline, before
        time.sleep(0.2)


def pystack(pid: int) -> dict[int, list[tuple[str, str, int]]]:
    """Return frames by thread from leaf to root: ("python", function, line) or ("native", module, 0).

    Native frames of the interpreter itself are left out.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pystack", "remote", "--native", str(pid)],
        capture_output=True, text=True, timeout=100, check=True, env={**os.environ, "PYTHONPATH": packages()},
    )  # fmt: skip
    found: dict[int, list[tuple[str, str, int]]] = {}
    frames: list[tuple[str, str, int]] = []
    for line in done.stdout.splitlines():
        head = re.match(r"Traceback for thread (\d+)", line)
        if head:
            frames = found.setdefault(int(head[1]), [])
        match = LINE.match(line)
        if match and match[1] == "Python":
            frames.insert(0, ("python", match[4], int(match[3])))
        elif match and not match[4].endswith("(inlined)") and foreign(match[5] or ""):
            frames.insert(0, ("native", Path(match[5]).name, 0))
    return found


def foreign(module: str) -> bool:
    """Return True unless the module is the interpreter or libpython."""
    return not re.match(r"(lib)?python3", Path(module).name)


def ours_with_native(pid: int) -> dict[int, list[tuple[str, str, int]]]:
    """Return pyprof's frames without functions like numpy's dispatcher_vectorcall, which pystack hides by name."""

    def kept(frame: dict[str, Any]) -> tuple[str, str, int] | None:
        if frame["kind"] == "python":
            return "python", frame["function"].rpartition(".")[2], frame["line"]
        if frame["kind"] == "native" and foreign(frame["module"]) and "vectorcall" not in frame["function"]:
            return "native", Path(frame["module"]).name, 0
        return None

    threads = dump(pid, "--native", "all")["threads"]
    return {t["tid"]: [frame for frame in map(kept, t["frames"]) if frame] for t in threads if t["interpreter"]}


def py_spy_native(pid: int) -> dict[int, list[str]]:
    """Return the functions of each thread from leaf to root, with unqualified Python names.

    Addresses without a name are left out, and so are functions of libc, some of which have two names.
    """
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--native", "--json", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return {
        thread["os_thread_id"]: [
            frame["name"].rpartition(".")[2]
            for frame in thread["frames"]
            if not frame["name"].startswith("0x") and "libc.so" not in (frame["module"] or "")
        ]
        for thread in json.loads(done.stdout)
    }


def agree(process: psutil.Process, until: str) -> None:
    found = still(process, until)
    theirs = py_spy(process.pid)
    named = {tid: [(name, Path(file).name, line) for name, file, line in frames] for tid, frames in theirs.items()}
    assert named == {tid: frames for tid, frames in found.items() if frames}
    names = {
        thread["tid"]: iter([(frame["function"] or "").rpartition(".")[2] for frame in thread["frames"]])
        for thread in dump(process.pid, "--native", "all")["threads"]
    }
    for tid, functions in py_spy_native(process.pid).items():
        assert all(function in names[tid] for function in functions), functions  # in the order of py-spy's stack
    with_native, theirs_too = ours_with_native(process.pid), pystack(process.pid)
    assert with_native == {tid: theirs_too[tid] for tid in with_native}


def test_pytest() -> None:
    with running("-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "sleeps.py", env={}) as process:
        agree(process, "test_sleeps")


def test_numpy() -> None:
    with running("numbers_work.py", env={}) as process:
        agree(process, "element")


def test_http_server() -> None:
    """Compare a server whose handlers wait for the rest of a request."""
    with ExitStack() as stack:
        port = free_port()
        command = ("-m", "http.server", "--bind", "127.0.0.1", str(port))
        process = stack.enter_context(running(*command, env={}))
        for _ in range(3):
            stack.enter_context(asking(port, b""))
        agree(process, "handle_one_request")


def test_worker_of_gunicorn() -> None:
    with ExitStack() as stack:
        port = free_port()
        command = ("-m", "gunicorn", "-k", "gthread", "-w", "1", "-t", "1000", "-b", f"127.0.0.1:{port}", "wsgi:wsgi")
        process = stack.enter_context(running(*command, env={"PYTHONPATH": packages()}))
        stack.enter_context(asking(port))
        agree(child(process), "handle")


def test_threads_of_uvicorn() -> None:
    with ExitStack() as stack:
        port = free_port()
        command = ("-m", "uvicorn", "--port", str(port), "wsgi:asgi")
        process = stack.enter_context(running(*command, env={"PYTHONPATH": packages()}))
        stack.enter_context(asking(port))
        agree(process, "handle")
