"""Runs of pyprof in processes that have loaded its modules already.

A server process loads every module of the package once for each test process. A run is a fork of it with the caller's
arguments, folder, environment and streams, and with a separate pid, exit code and signals. It ends as Python ends, but
leaves its objects to the kernel: the start of an interpreter and the destruction of all objects cost as much as a short
recording. If the environment differs in variables that Python itself reads, the run is a new `python -m pyprof`. The
tests of start-up, signals and terminals always start a new one, too.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FunctionType

from pyprof.lazy_dataclasses import is_record

ROOT = Path(__file__).parent.parent
FOLDERS = ("collectors", "exporters", "interpreters", "unwind")
"""Packages of pyprof that lie next to its folder in a checkout."""
_MAX_MESSAGE = 1 << 17


def run(
    *arguments: str, timeout: float = 60, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pyprof` with these arguments and no standard input.

    Raises:
        subprocess.TimeoutExpired: The run took longer than the timeout.
    """
    environment = dict(os.environ if env is None else env)
    if _read_by_python(environment) != _read_by_python(os.environ):
        command = [sys.executable, "-m", "pyprof", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=environment
        )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps message boundaries
    out, err = os.pipe(), os.pipe()
    with ours, open(out[0], "rb"), open(err[0], "rb"):
        message = json.dumps({"arguments": arguments, "cwd": str(cwd or Path.cwd()), "env": environment}).encode()
        assert len(message) < _MAX_MESSAGE
        with theirs:
            files = array.array("i", [theirs.fileno(), out[1], err[1]])
            _server().sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        os.close(out[1])
        os.close(err[1])
        pid = json.loads(ours.recv(64))
        said = _read([out[0], err[0]], time.monotonic() + timeout)
        if said is None:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["pyprof", *arguments], timeout)
        texts = [text.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n") for text in said]
        return subprocess.CompletedProcess(["pyprof", *arguments], json.loads(ours.recv(64)), *texts)


def _read_by_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads at its start, so that other values need a new interpreter."""
    return {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def _read(pipes: list[int], deadline: float) -> list[bytes] | None:
    """Read pipes until they are closed at the other end. Return None after the deadline."""
    said = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as ready:
        for pipe in pipes:
            ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select(max(0, deadline - time.monotonic())):
                data = os.read(key.fd, 1 << 16)
                said[key.fd] += data
                if not data:
                    ready.unregister(key.fd)
            if time.monotonic() > deadline:
                return None
    return [bytes(text) for text in said.values()]


@cache
def _server() -> socket.socket:
    """Start the server and return its request socket. The server ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", "from tests.warm import serve; serve()"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with theirs:
        process = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def serve() -> None:
    """Serve requests from standard input, in the server process."""
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in ("pyprof", *(f"pyprof.{folder}" for folder in FOLDERS)):
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    _compile_methods()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the waiting processes
    while True:
        message, files, *_ = socket.recv_fds(requests, _MAX_MESSAGE, 3)
        if not message:
            return
        if not os.fork():
            requests.close()
            _run(message, files)
            return
        for file in files:
            os.close(file)


def _compile_methods() -> None:
    """Compile the methods of all records, which each run would compile at their first call."""
    for kind in [each for each in gc.get_objects() if isinstance(each, type) and is_record(each)]:
        for name, method in list(vars(kind).items()):
            if isinstance(method, FunctionType) and method.__qualname__.startswith("_at_first_call."):
                setattr(kind, name, inspect.getclosurevars(method).nonlocals["make"](kind))


def _run(message: bytes, files: list[int]) -> None:
    """Fork pyprof, and report its pid and exit code to the caller. The fork runs pyprof."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        with socket.socket(fileno=files[0]) as caller, contextlib.suppress(BrokenPipeError):
            for file in files[1:]:
                os.close(file)
            caller.send(json.dumps(pid).encode())
            _, status = os.waitpid(pid, 0)
            caller.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    asked = json.loads(message)
    for number, file in enumerate(files[1:], 1):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[1:] = asked["arguments"]
    from pyprof.__main__ import main

    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit(end.code)
        raise


def _exit(code: int) -> None:
    """End the process as Python does, up to the destruction of all objects."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)
