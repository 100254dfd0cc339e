"""The command that prints the table of docs/accuracy.md: programs in step with the samples, by collector and rate."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator

import tests.lockstep
from tests.lockstep.agent import record_shares_by_agent
from tests.lockstep.gaps import GAPS, ks_probability
from tests.lockstep.shares import COLLECTORS, PERIODS, Share, record_shares
from tests.support import BUILDS

AGENT = "agent"
NAMES = [*COLLECTORS, AGENT]
MAX_Z, DISPERSION, MIN_PROBABILITY = 5.5, (0.7, 1.3), 1e-7


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lockstep",
        description=tests.lockstep.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[19, 99, 100, 999, 1000], metavar="HZ")
    parser.add_argument("--collectors", nargs="+", default=NAMES, choices=NAMES, metavar="NAME")
    parser.add_argument("--samples", type=int, default=400, help="of each program, then the next row (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of a row at most (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault(BUILDS, folder)
        failed = sum(_rows(options.collectors, options.rates, options.samples, options.seconds))
    return int(failed > 0)


def _rows(collectors: list[str], rates: list[float], samples: int, seconds: float) -> Iterator[bool]:
    """Print the table, and yield True for each row that is out of bounds.

    A cell has the sampled share in percent, the true one in parentheses, and their difference in standard deviations.
    """
    print(f"| collector | Hz | samples | {' | '.join(PERIODS)} | largest z | gaps fit |")
    print("|---" * (len(PERIODS) + 5) + "|", flush=True)
    squares: list[float] = []
    for collector in collectors:
        for rate in rates:
            shares = _record_shares(collector, rate, lambda n, passed: n >= samples or passed >= seconds)
            probability = _gaps_fit(collector, rate, seconds / 6)
            squares += [share.z**2 for share in shares]
            print(_row(collector, rate, shares, probability), flush=True)
            yield any(abs(share.z) >= MAX_Z for share in shares)
            yield probability is not None and probability <= MIN_PROBABILITY
    dispersion = sum(squares) / len(squares)
    print(f"\nchi2/df over {len(squares)} shares: {dispersion:.2f} (sum of squares {sum(squares):.1f})")
    yield not DISPERSION[0] <= dispersion <= DISPERSION[1]


def _record_shares(collector: str, rate: float, until: Callable[[int, float], bool]) -> list[Share]:
    if collector == AGENT:
        return record_shares_by_agent(rate, PERIODS, until)
    return record_shares(collector, rate, PERIODS, until)


def _gaps_fit(collector: str, rate: float, seconds: float) -> float | None:
    return ks_probability(*GAPS[collector](rate, seconds)) if collector in GAPS else None


def _row(collector: str, rate: float, shares: list[Share], probability: float | None) -> str:
    cells = [f"{100 * share.sampled:.1f} ({100 * share.truth:.1f}), {share.z:+.1f}" for share in shares]
    total = sum(sum(share.samples) for share in shares)
    largest = max((share.z for share in shares), key=abs)
    fit = f"p = {probability:.2g}" if probability is not None else ""
    return f"| {collector} | {rate:g} | {total:,} | {' | '.join(cells)} | {largest:.1f} | {fit} |"


if __name__ == "__main__":
    raise SystemExit(main())
