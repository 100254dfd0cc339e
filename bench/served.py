"""Starts a pyprof server in a separate process for a measurement."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_CONFIG = """\
[server]
port = {port}
data = "{data}"
[limits]
rate = 100000
"""


@contextlib.contextmanager
def served(data: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a pyprof server within the context, and yield its port and process. Its configuration is written next to the
    data folder.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    config = data.with_suffix(".toml")
    config.write_text(_CONFIG.format(port=port, data=data))
    server = subprocess.Popen([sys.executable, "-m", "pyprof", "server", "--config", str(config)])
    try:
        until = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
            time.sleep(0.1)
        yield port, server
    finally:
        server.terminate()
        try:
            server.wait(60)
        finally:
            server.kill()
