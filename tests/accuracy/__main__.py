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
from tests.accuracy import no_tables, node_names, thrown
from tests.accuracy.java import has_virtual_threads, sample_java, sample_virtual_threads
from tests.accuracy.thrown import COLLECTORS, Verdict
from tests.jit.java_ladder import MODES, compile_ladder


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.accuracy",
        description=tests.accuracy.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--samples", type=int, default=100_000, metavar="N", help="of each program and collector")
    parser.add_argument("--collector", choices=COLLECTORS, action="append", help="only this one; may be repeated")
    parser.add_argument("--java", action="append", metavar="FILE", help="Java's program; may be repeated for versions")
    parser.add_argument("--node", metavar="FILE", action="append", help="Node.js; may be repeated for versions")
    options = parser.parse_args()
    collectors = options.collector or COLLECTORS
    wrong = 0
    sys.stdout.write(f"{'samples':>9} {'whole':>9} {'unwinder':>9} {'impossible':>10}  collector  program\n")
    with tempfile.TemporaryDirectory(prefix="pyprof-accuracy-") as folder:
        os.environ.setdefault(support.BUILDS, folder)
        classes = compile_ladder(Path(folder))
        programs = [
            *((how.name, partial(thrown.sample_program, how)) for how in thrown.BUILDS),
            *((how.name, partial(no_tables.sample_program, how)) for how in no_tables.BUILDS),
        ]
        for name, sample_program in programs:
            for collector in collectors:
                wrong += show(sample_program(collector, Path(folder), options.samples), collector, name)
        for java in options.java or ["java"]:
            for mode in MODES:
                for collector in collectors:
                    found = sample_java(mode, collector, classes, Path(folder), options.samples, java)
                    wrong += show(found, collector, f"{java} {mode}")
                    if has_virtual_threads(java):
                        found = sample_virtual_threads(mode, collector, classes, Path(folder), options.samples, java)
                        wrong += show(found, collector, f"{java} {mode}, virtual threads")
        for node in options.node or ["node"]:
            for mode in node_names.MODES:
                for collector in collectors:
                    found = node_names.sample_names(mode, collector, Path(folder), options.samples, node)
                    different = show(found, collector, f"{node} {mode}, names")
                    wrong += different > node_names.MAX_DIFFERENT * found.samples
    return 3 if wrong else 0


def show(found: Verdict, collector: str, program: str) -> int:
    """Print a line about the samples of a program and the impossible stacks, and return their number."""
    count = sum(found.impossible.values())
    columns = f"{found.samples:9} {found.whole:9} {found.in_unwinder:9} {count:10}"
    sys.stdout.write(f"{columns}  {collector:9}  {program}\n")
    for stack, times in sorted(found.impossible.items(), key=lambda item: -item[1])[:10]:
        sys.stdout.write(f"{times:9}  {stack}\n")
    sys.stdout.flush()
    return count


if __name__ == "__main__":
    sys.exit(main())
