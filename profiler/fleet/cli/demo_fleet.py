"""`pyprof demo-fleet`: a server, an agent and two services on this machine, to try the page with real data."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyprof.cli.terminal_output import line
from pyprof.errors import PyprofError

if TYPE_CHECKING:
    import subprocess

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_READY_S = 90.0
_LOOK_S = 0.5
_END_S = 10.0
_WORK = """
import json, sys, time, zlib
ROWS = [{"id": n, "name": "x" * (n % 40), "tags": list(range(n % 7))} for n in range(300)]
def encode(): return json.dumps(ROWS)
def decode(text): return json.loads(text)
def compress(text): return zlib.compress(text.encode(), 6 if VERSION == "1" else 9)
def handle():
    text = encode()
    decode(text)
    compress(text)
VERSION = sys.argv[1]
while True:
    handle()
    time.sleep(0.002)
"""
_SERVICES = (("checkout", "1"), ("checkout", "2"), ("search", "1"))
_CONFIG = """
[spool]
path = "{folder}/spool"
[windows]
every = "10s"
[budget]
cpu = 20
[labels]
host = "demo"
[[push]]
name = "demo"
type = "pyprof"
url = "http://127.0.0.1:{port}"
"""
_RULE = """
[[rule]]
cmdline = "demo-fleet-{service}-{version}"
service = "{service}"
labels = {{ version = "{version}" }}
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "demo-fleet",
        help="run a server, an agent and two services as a demonstration, until Ctrl-C",
        description="Starts a server, an agent and three processes of two services on this machine, and says where "
        "the page is. Ctrl-C ends them and deletes what they wrote. Needs pip install 'pyprof-live[server]'.",
    )
    parser.add_argument("--port", type=int, default=4242, metavar="PORT", help="(default: %(default)d)")
    parser.add_argument("-d", "--duration", type=float, metavar="SECONDS", help="end after this time")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import tempfile

    began = time.monotonic()
    url = f"http://127.0.0.1:{arguments.port}/?span=900"
    for number in SIGNALS:
        signal.signal(number, interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="pyprof-fleet-") as folder, _running(folder, arguments.port) as fleet:
            _until_windows(arguments.port, fleet)
            line(f"{url} has the first windows after {time.monotonic() - began:.0f} s; Ctrl-C ends all")
            if not arguments.no_open:
                import webbrowser

                webbrowser.open(url)
            while arguments.duration is None or time.monotonic() < began + arguments.duration:
                _check(fleet)
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        pass
    return 0


def interrupt(number: int, frame: object) -> None:
    """Begin to end the demo on the first signal, and ignore further signals: the folder could otherwise be deleted
    while processes still write to it.
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _running(folder: str, port: int) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start the processes of the demo and yield them by name. End all of them when the context is left."""
    import subprocess

    from pyprof.exporters import output_file

    config = os.path.join(folder, "agent.toml")
    with open(output_file.create_file(config, 0o600), "w") as file:
        file.write(_CONFIG.format(folder=folder, port=port))
        for service, version in _SERVICES:
            file.write(_RULE.format(service=service, version=version))
    own = [sys.executable, "-m", "pyprof"]
    found: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for service, version in _SERVICES:
            name = f"demo-fleet-{service}-{version}"
            found[name] = subprocess.Popen([sys.executable, "-c", _WORK, version, name], process_group=0)
        server = [*own, "server", "--data", f"{folder}/data", "--port", str(port)]
        # the terminal's Ctrl-C does not reach another process group
        found["the server"] = subprocess.Popen(server, process_group=0)
        found["the agent"] = subprocess.Popen([*own, "agent", "--config", config], process_group=0)
        yield found
    finally:
        end_in_order(list(reversed(found.values())))


def end_in_order(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes one after another: the agent sends its last window to a server that still runs."""
    import subprocess

    for process in processes:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check(fleet: dict[str, subprocess.Popen[bytes]]) -> None:
    """Raise PyprofError if a process of the demo fleet has ended."""
    for name, process in fleet.items():
        if process.poll() is not None:
            raise PyprofError(f"{name} has ended with status {process.returncode}")


def _until_windows(port: int, fleet: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until the demo's server has a window of each service.

    Raises:
        PyprofError: A process has ended, or no window arrived in time.
    """
    wanted = {service for service, _ in _SERVICES}
    deadline = time.monotonic() + _READY_S
    while not wanted <= _services(port):
        _check(fleet)
        if time.monotonic() > deadline:
            raise PyprofError(f"no window came within {_READY_S:.0f} s", "pyprof doctor says what the agent lacks")
        time.sleep(_LOOK_S)


def _services(port: int) -> set[str]:
    import json
    from http.client import HTTPConnection, HTTPException

    now = time.time()
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"/api/v1/services?from={now - 3600:.0f}&to={now + 60:.0f}")
        answer = connection.getresponse()
        return {row["service"] for row in json.loads(answer.read())["services"] if row["amount"]}
    except (OSError, HTTPException, ValueError, KeyError):
        return set()
    finally:
        connection.close()
