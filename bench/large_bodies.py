"""`python -m bench.large_bodies`: how much longer a push takes while another tenant sends bodies that are large.

Turns with and without the other one follow one another. It sends two bodies a second of a few MB, each of which
inflates to 100 MiB, as long as the server takes them; what is refused is counted. The pushes are windows of 400 stacks
(bench/segments.py), one after the other on a connection that stays open.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.fleet import bodies
from pyprof.agent.segments import SegmentName

_TEXTS, _LETTERS = 100_000, 1040
_PAUSE_S, _EVERY_S, _BETWEEN_S = 0.02, 0.5, 2.0
_CONFIG = """\
[server]
port = {port}
data = "{folder}/data"
[limits]
rate = 100000
"""


def large(window: bytes) -> bytes:
    """A window with texts that no stack needs."""
    rng, found = random.Random(3), bytearray(gzip.decompress(window))
    for _ in range(_TEXTS):
        text = (f"{rng.getrandbits(112):028x}" + "function" * (_LETTERS // 8)).encode()[:_LETTERS]
        found += b"\x32" + bytes([len(text) & 127 | 128, len(text) >> 7]) + text
    return gzip.compress(bytes(found), 6)


class Sender:
    """service: one for each sender, so that no two segments have one name."""

    def __init__(self, port: int, service: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._service = service
        self._end_ns = time.time_ns() // 10**9 * 10**9

    def push(self, body: bytes) -> int:
        """The status."""
        self._end_ns -= 1_000_000
        name = SegmentName.new(self._service, self._end_ns)
        try:
            return self._posted(name, body)
        except http.client.HTTPException:  # the server hangs up on who says nothing for long
            self._connection.close()
            return self._posted(name, body)

    def _posted(self, name: SegmentName, body: bytes) -> int:
        self._connection.request("POST", f"/api/v1/segments/{name.path}", body)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


@contextlib.contextmanager
def attacked(sender: Sender, body: bytes, statuses: Counter[int]) -> Iterator[None]:
    ends = threading.Event()

    def attack() -> None:
        while not ends.is_set():
            began = time.monotonic()
            statuses[sender.push(body)] += 1
            ends.wait(max(_EVERY_S - (time.monotonic() - began), 0))

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        time.sleep(_BETWEEN_S)
        yield
    finally:
        ends.set()
        thread.join()


def turn(sender: Sender, small: list[bytes], seconds: float) -> list[float]:
    """ms that each push took."""
    took: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        status = sender.push(small[len(took) % len(small)])
        took.append(1000 * (time.perf_counter() - began))
        assert status == 200, status
        time.sleep(_PAUSE_S)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.large_bodies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    arguments = parser.parse_args()
    small = bodies(10)
    body = large(small[0])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="pyprof-bench-") as name:
        config = Path(name) / "server.toml"
        config.write_text(_CONFIG.format(port=port, folder=name))
        server = subprocess.Popen([sys.executable, "-m", "pyprof", "server", "--config", str(config)])
        try:
            until = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
                time.sleep(0.1)
            one, other, statuses = Sender(port, "small"), Sender(port, "large"), Counter[int]()
            turn(one, small, 5)
            ratios = []
            for number in range(arguments.rounds):
                took: dict[bool, list[float]] = {}
                for both in (True, False) if number % 2 else (False, True):
                    with attacked(other, body, statuses) if both else contextlib.nullcontext():
                        took[both] = turn(one, small, arguments.seconds)
                    time.sleep(_BETWEEN_S)
                ratios.append(statistics.fmean(took[True]) / statistics.fmean(took[False]))
                print(*(f"{_words(both, took[both])}" for both in (False, True)), sep="; ", flush=True)
            spread = f"{100 * (min(ratios) - 1):+.0f} to {100 * (max(ratios) - 1):+.0f}"
            print(f"a push takes {100 * (statistics.fmean(ratios) - 1):+.1f} % longer ({spread}), goal 10")
            print("large bodies of", f"{len(body) / 1e6:.1f} MB, by status:", dict(statuses))
        finally:
            server.terminate()
            try:
                server.wait(60)
            finally:
                server.kill()


def _words(both: bool, took: list[float]) -> str:
    ordered = sorted(took)
    middle, late = statistics.median(ordered), ordered[int(0.95 * len(ordered))]
    which = "with large bodies" if both else "alone"
    return f"{which} {statistics.fmean(ordered):.2f} ms, p50 {middle:.2f}, p95 {late:.2f}"


if __name__ == "__main__":
    main()
