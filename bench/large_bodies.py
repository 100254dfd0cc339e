"""`python -m bench.large_bodies`: measure how much longer a push takes while another client sends large bodies.

Turns follow one another in random order: no other client; another client sends to the same server (bench/attackers.py);
another client sends to a second server on this machine. The last kind of turn is the control: it shows the slowdown
that the machine's load causes. The speed of a disk varies from second to second, so many short turns are more precise
than a few long ones. The printed result of rounds is the geometric mean of their ratios with its 95 % interval. The
pushes are windows of 400 stacks (bench/segments.py), one after the other on a persistent connection.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.agent import interval
from bench.attackers import Sender
from bench.fleet import bodies
from bench.served import served
from pyprof.exporters.protobuf_encoding import encode_data, encode_number, encode_packed

_TEXTS, _LETTERS = 100_000, 1040
_PAUSE_S, _BETWEEN_S = 0.02, 1.5
KINDS = ("inflating", "flood", "stated", "chunked", "bomb", "slow", "labels", "unknown", "new")
_LABELS = 300_000
_UNKNOWN, _NEW, _CALLS = 4000, 500, 55
ALONE, HERE, ELSEWHERE = "alone", "with large bodies", "with large bodies for another server"


def large() -> bytes:
    """Return a segment of a window that contains 100 MiB of texts which no stack uses. Compressed it has 2.3 MB."""
    rng, found = random.Random(3), bytearray(gzip.decompress(bodies(1)[0]))
    for _ in range(_TEXTS):
        text = (f"{rng.getrandbits(112):028x}" + "function" * (_LETTERS // 8)).encode()[:_LETTERS]
        found += b"\x32" + bytes([len(text) & 127 | 128, len(text) >> 7]) + text
    return gzip.compress(bytes(found), 6)


def bomb() -> bytes:
    return gzip.compress(bytes(130 << 20), 9)


def labels() -> bytes:
    """Return a pprof file with one sample for each of many values of a label."""
    return _profile(([1], number + 1) for number in range(_LABELS))


def unknown(count: int = _UNKNOWN) -> bytes:
    """Return a pprof file with random stacks, which no cache can know. Their number is the maximum that one thread of
    the server reads.
    """
    rng = random.Random(5)
    return _profile(([rng.randrange(1, 100) for _ in range(_CALLS)], 0) for _ in range(count))


def new() -> bytes:
    """Return a pprof file with a few new stacks of known functions, as services in Python send each minute."""
    return unknown(_NEW)


def _profile(samples: Iterable[tuple[Sequence[int], int]]) -> bytes:
    """Encode a pprof file. A sample is (ids of locations below 100, value of a label)."""
    texts = (b"", b"cpu", b"nanoseconds", b"request", *(b"function_%d" % at for at in range(1, 100)))
    parts = [encode_data(1, encode_number(1, 1) + encode_number(2, 2))]
    parts += [
        encode_data(
            2,
            encode_data(1, bytes(ids))
            + encode_packed(2, (1,))
            + encode_data(3, encode_number(1, 3) + encode_number(3, value)),
        )
        for ids, value in samples
    ]
    parts += [encode_data(4, encode_number(1, at) + encode_data(4, encode_number(1, at))) for at in range(1, 100)]
    parts += [encode_data(5, encode_number(1, at) + encode_number(2, at + 3)) for at in range(1, 100)]
    parts += [encode_data(6, text) for text in texts]
    return gzip.compress(b"".join(parts))


BODIES = {"inflating": large, "bomb": bomb, "labels": labels, "unknown": unknown, "new": new}


@contextlib.contextmanager
def attacked(kind: str, port: int, body: Path, statuses: Counter[str]) -> Iterator[None]:
    kind = "inflating" if kind in BODIES and kind != "new" else kind
    command = [sys.executable, "-m", "bench.attackers", kind, str(port), str(body)]
    attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        time.sleep(_BETWEEN_S)
        yield
    finally:
        statuses.update(json.loads(attacker.communicate()[0]))


def turn(sender: Sender, small: list[bytes], seconds: float) -> list[float]:
    """Push windows for some seconds, and return the duration of each push in milliseconds."""
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
    parser.add_argument("kinds", nargs="*", default=KINDS, help="of attackers: " + ", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--folder", help="for the servers' data")
    arguments = parser.parse_args()
    small = bodies(10)
    with tempfile.TemporaryDirectory(prefix="pyprof-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        for kind, made in BODIES.items():
            (folder / kind).write_bytes(made())
        with served(folder / "one") as (port, _), served(folder / "other") as (other, _):
            one = Sender(port, "small")
            turn(one, small, 5)
            for kind in arguments.kinds:
                body = folder / (kind if kind in BODIES else "inflating")
                found: dict[str, list[list[float]]] = defaultdict(list)
                statuses = {HERE: Counter[str](), ELSEWHERE: Counter[str]()}
                for _ in range(arguments.rounds):
                    for state in random.sample((ALONE, HERE, ELSEWHERE), 3):
                        at = other if state == ELSEWHERE else port
                        with contextlib.nullcontext() if state == ALONE else attacked(kind, at, body, statuses[state]):
                            found[state].append(turn(one, small, arguments.seconds))
                        time.sleep(_BETWEEN_S)
                _print_states(kind, found, statuses)


def _print_states(kind: str, found: dict[str, list[list[float]]], statuses: dict[str, Counter[str]]) -> None:
    print(f"{kind}:")
    alone = [each for one in found[ALONE] for each in one]
    for state in (ALONE, HERE, ELSEWHERE):
        took = sorted(each for one in found[state] for each in one)
        mean, middle = statistics.fmean(took), statistics.median(took)
        line = f"  {state}: {mean:.2f} ms, p50 {middle:.2f}, p95 {took[int(0.95 * len(took))]:.2f}"
        if state != ALONE:
            pairs = zip(found[state], found[ALONE], strict=True)
            ratios = [math.log(statistics.fmean(one) / statistics.fmean(other)) for one, other in pairs]
            of_rounds, low, high = (_longer(math.exp(each)) for each in interval(ratios))
            line += f"; {_longer(mean / statistics.fmean(alone))}; of rounds {of_rounds} (95 %: {low} to {high})"
            line += f", p50 {_longer(middle / statistics.median(alone))}; by status {dict(statuses[state])}"
        print(line, flush=True)


def _longer(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


if __name__ == "__main__":
    main()
