"""Command line of the accuracy check: python -m tests.accuracy [--samples N] [--collector NAME]."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import tests.accuracy
from tests import support
from tests.accuracy import no_tables, thrown
from tests.accuracy.thrown import COLLECTORS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.accuracy",
        description=tests.accuracy.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--samples", type=int, default=100_000, metavar="N", help="of each program and collector")
    parser.add_argument("--collector", choices=COLLECTORS, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    wrong = 0
    sys.stdout.write(f"{'samples':>9} {'whole':>9} {'unwinder':>9} {'impossible':>10}  collector  program\n")
    with tempfile.TemporaryDirectory(prefix="pyprof-accuracy-") as folder:
        os.environ.setdefault(support.BUILDS, folder)
        programs = [
            *((how.name, partial(thrown.sample_program, how)) for how in thrown.BUILDS),
            *((how.name, partial(no_tables.sample_program, how)) for how in no_tables.BUILDS),
        ]
        for name, sample_program in programs:
            for collector in options.collector or COLLECTORS:
                found = sample_program(collector, Path(folder), options.samples)
                count = sum(found.impossible.values())
                wrong += count
                columns = f"{found.samples:9} {found.whole:9} {found.in_unwinder:9} {count:10}"
                sys.stdout.write(f"{columns}  {collector:9}  {name}\n")
                for stack, times in sorted(found.impossible.items(), key=lambda item: -item[1])[:10]:
                    sys.stdout.write(f"{times:9}  {stack}\n")
                sys.stdout.flush()
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
