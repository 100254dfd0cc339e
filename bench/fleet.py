"""`python -m bench.fleet`: measure a server: windows per second, bytes at rest, and duration of queries.

Hosts send windows of 400 stacks of 25 functions (bench/segments.py), minute by minute, on persistent connections. All
services have stacks of the same functions; of a hundred stacks of a window, `--new` are in no other window. A window is
accepted when its file is durable; the delay until the last one is in the database is printed. Windows of each kind are
sent before the clock starts, because a running server already knows its stacks.

First, files of the same contents are made durable without a server, to measure the disk. Before ext4 uses an inode, it
checks all inodes that were deleted in the last one to five minutes. So after many files were deleted, also by a run of
this program, each file costs more processor time.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.segments import DIFFERENT, STACKS, window
from bench.served import served
from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.server.ingest.segment_files import SegmentFiles
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import replace

SERVICES, CONNECTIONS = 100, 8
MINUTE_NS = 60 * 10**9
_PATIENCE_S = 600
_ALONE = 2000


def bodies(count: int, new: int = 0) -> list[bytes]:
    """Return synthetic windows as encoded segments. Of a hundred stacks of a window, `new` are in no other window."""
    rng, found = random.Random(20), []
    for _ in range(count):
        out = io.BytesIO()
        pprof.write(window(rng, time.time_ns(), new=new), out, ExportOptions(evidence=True))
        found.append(out.getvalue())
    return found


def processor_s(pid: int) -> float:
    """Return the processor time that a process with all its threads has used, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def disk_alone(folder: Path, made: list[bytes]) -> tuple[float, float]:
    """Measure the disk without a server: return (durable files written per second, milliseconds of processor time for
    each).
    """
    files = SegmentFiles(str(folder))
    name = SegmentName.new("alone", time.time_ns())

    def keeps(thread: int) -> None:
        for number in range(_ALONE // CONNECTIONS):
            files.store_segment(f"tenant{thread}", replace(name, end_ns=name.end_ns + number), made[number % len(made)])

    began, spent = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(keeps, range(CONNECTIONS)))
    files.close()
    return _ALONE / (time.perf_counter() - began), 1000 * (time.process_time() - spent) / _ALONE


class Fleet:
    """The simulated hosts, which send windows of SERVICES services in turn to a server."""

    def __init__(self, port: int, windows: int, new: int) -> None:
        self._port, self._new = port, new
        self._first = bodies(DIFFERENT)
        self._bodies = bodies(windows, new) if new else self._first
        self._now = time.time_ns() // MINUTE_NS * MINUTE_NS
        self._statuses: list[int] = []
        self.sent = 0

    def warm(self) -> None:
        self._send(self._first)
        self.until_indexed()

    def send(self, windows: int) -> float:
        """Send windows, and return the time in seconds until the server has accepted all."""
        began = time.perf_counter()
        self._send([self._bodies[number % len(self._bodies)] for number in range(windows)])
        return time.perf_counter() - began

    def _send(self, sent: list[bytes]) -> None:
        threads = [threading.Thread(target=self._sender, args=(sent, number)) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.sent += len(sent)
        assert self._statuses.count(200) == self.sent, sorted(set(self._statuses))

    def _sender(self, sent: list[bytes], first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        for number in range(first, len(sent), CONNECTIONS):
            end_ns = self._now - (self.sent + number) // SERVICES * MINUTE_NS
            name = SegmentName.new(f"service-{number % SERVICES}", end_ns)
            connection.request("POST", f"/api/v1/segments/{name.path}", sent[number])
            answer = connection.getresponse()
            answer.read()
            self._statuses.append(answer.status)

    def ask(self, question: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        now = self._now // 10**9
        connection.request("GET", f"/api/v1/{question}&from={now - 86_400}&to={now + 60}")
        answer = connection.getresponse()
        found = answer.read()
        assert answer.status == 200, found[:200]
        return found

    def until_indexed(self) -> float:
        """Wait until the server's database has all windows, and return the time in seconds."""
        began = time.perf_counter()
        while sum(row["windows"] for row in json.loads(self.ask("services?"))["services"]) < self.sent:
            assert time.perf_counter() - began < _PATIENCE_S
            time.sleep(0.1)
        return time.perf_counter() - began


def rows_and_bytes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return (rows, bytes on disk) of each table in the server's database, after the server has ended."""
    code = (
        "import sys\n"
        "from pyprof.fleet.server.store.clickhouse_engine import ChdbEngine, StoreAddress\n"
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
    parser.add_argument("--new", type=int, default=0, metavar="PERCENT", help="stacks that only one window has")
    arguments = parser.parse_args()
    count = arguments.windows
    with tempfile.TemporaryDirectory(prefix="pyprof-bench-") as name:
        folder = Path(name)
        rate, each_ms = disk_alone(folder / "alone", bodies(DIFFERENT))
        print(f"the disk alone: {rate:.0f} files a second, {each_ms:.2f} ms of processor time each")
        with served(folder / "data") as (port, server):
            fleet = Fleet(port, count, arguments.new)
            fleet.warm()
            spent, own = processor_s(server.pid), time.process_time()
            taken = fleet.send(count)
            behind = fleet.until_indexed()
            spent, own = processor_s(server.pid) - spent, time.process_time() - own
            print(f"{count:,} windows of {STACKS} stacks, {arguments.new} of a hundred of them new")
            print(f"{count / taken:.0f} taken a second, all in the database {behind:.1f} s after the last was taken")
            print(f"processor time a window: {1000 * spent / count:.2f} ms, and {1000 * own / count:.2f} of who sends")
            for title, question in (
                ("services", "services?"),
                ("time line of one service", "timeline?service=service-1"),
                ("one service, merged", "profile?format=pprof&service=service-1"),
                (f"{SERVICES} services, merged", "profile?format=pprof"),
            ):
                began = time.perf_counter()
                size = len(fleet.ask(question))
                print(f"{title:26} {1000 * (time.perf_counter() - began):8.0f} ms, {size:,} bytes")
        tables = rows_and_bytes(folder / "data")
        samples = tables["window_samples"][0]
        for table, (rows, size) in tables.items():
            print(f"{table:8} {rows:10,} rows {size:12,} bytes, {size / max(samples, 1):.2f} a sample")
        files = sum(path.stat().st_size for path in (folder / "data").rglob("*.pb.gz"))
        whole = sum(size for _, size in tables.values())
        print(f"all tables {whole / samples:.2f} bytes a sample, segments {files / samples:.1f}")


if __name__ == "__main__":
    main()
