"""`python -m bench.fleet`: how many windows a second a server takes, what they need at rest, how long questions take.

Hosts send windows of 400 stacks of 25 functions (bench/segments.py), one minute after the other, by connections that
stay open. All services have stacks of the same functions. A window is taken when its file is durable. What is indexed
later is waited for and counted, too: "indexed" is the rate that a server keeps for ever.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.segments import DIFFERENT, STACKS, window
from pyprof.agent.segments import SegmentName
from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions

SERVICES, CONNECTIONS = 100, 8
MINUTE_NS = 60 * 10**9
_PATIENCE_S = 600


def bodies(count: int) -> list[bytes]:
    rng, found = random.Random(20), []
    for _ in range(count):
        out = io.BytesIO()
        pprof.write(window(rng, time.time_ns()), out, ExportOptions(evidence=True))
        found.append(out.getvalue())
    return found


class Fleet:
    """windows: how many are sent, of SERVICES services in turn."""

    def __init__(self, port: int, windows: int) -> None:
        self._port, self._windows = port, windows
        self._bodies = bodies(DIFFERENT)
        self._now = time.time_ns() // MINUTE_NS * MINUTE_NS
        self._statuses: list[int] = []

    def send(self) -> float:
        """Seconds until all are taken."""
        began = time.perf_counter()
        threads = [threading.Thread(target=self._sender, args=(number,)) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self._statuses.count(200) == self._windows, sorted(set(self._statuses))
        return time.perf_counter() - began

    def _sender(self, first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        for number in range(first, self._windows, CONNECTIONS):
            end_ns = self._now - number // SERVICES * MINUTE_NS
            name = SegmentName.new(f"service-{number % SERVICES}", end_ns)
            connection.request("POST", f"/api/v1/segments/{name.path}", self._bodies[number % DIFFERENT])
            answer = connection.getresponse()
            answer.read()
            self._statuses.append(answer.status)

    def ask(self, question: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        connection.request("GET", f"/api/v1/{question}&from={self._now // 10**9 - 86_400}&to={self._now // 10**9 + 60}")
        answer = connection.getresponse()
        found = answer.read()
        assert answer.status == 200, found[:200]
        return found

    def until_indexed(self) -> float:
        """Seconds."""
        began = time.perf_counter()
        while sum(row["windows"] for row in json.loads(self.ask("services?"))["services"]) < self._windows:
            assert time.perf_counter() - began < _PATIENCE_S
            time.sleep(0.1)
        return time.perf_counter() - began


def rows_and_bytes(folder: Path) -> dict[str, tuple[int, int]]:
    """By table, after the server has ended."""
    code = (
        "import sys\n"
        "from pyprof.server.engine import ChdbEngine, StoreAddress\n"
        "engine = ChdbEngine(StoreAddress('chdb', path=sys.argv[1]), 14)\n"
        "for row in engine.rows('SELECT table, sum(rows), sum(bytes_on_disk) FROM system.parts '\n"
        "                       'WHERE active GROUP BY table ORDER BY table'):\n"
        "    print(*row)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "store")], capture_output=True, text=True, check=True
    )
    return {name: (int(rows), int(size)) for name, rows, size in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--windows", type=int, default=2000)
    count = parser.parse_args().windows
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="pyprof-bench-") as name:
        folder = Path(name)
        config = folder / "server.toml"
        config.write_text(f'[server]\nport = {port}\ndata = "{folder}/data"\n[limits]\nrate = 100000\n')
        server = subprocess.Popen([sys.executable, "-m", "pyprof", "server", "--config", str(config)])
        try:
            fleet = Fleet(port, count)
            until = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
                time.sleep(0.1)
            taken = fleet.send()
            indexed = taken + fleet.until_indexed()
            print(f"{count:,} windows of {STACKS} stacks")
            print(f"{count / taken:.0f} taken a second, {count / indexed:.0f} indexed")
            for title, question in (
                ("services", "services?"),
                ("time line of one service", "timeline?service=service-1"),
                ("one service, merged", "profile?format=pprof&service=service-1"),
                (f"{SERVICES} services, merged", "profile?format=pprof"),
            ):
                began = time.perf_counter()
                size = len(fleet.ask(question))
                print(f"{title:26} {1000 * (time.perf_counter() - began):8.0f} ms, {size:,} bytes")
        finally:
            server.terminate()
            server.wait(60)
        tables = rows_and_bytes(folder / "data")
        samples = tables["samples"][0]
        for table, (rows, size) in tables.items():
            print(f"{table:8} {rows:10,} rows {size:12,} bytes, {size / max(samples, 1):.2f} a sample")
        files = sum(path.stat().st_size for path in folder.rglob("*.pb.gz"))
        whole = sum(size for _, size in tables.values())
        print(f"all tables {whole / samples:.2f} bytes a sample, segments {files / samples:.1f}")


if __name__ == "__main__":
    main()
