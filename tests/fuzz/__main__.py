"""`python -m tests.fuzz --seconds N [--corpus DIR] [READER ...]`: fuzz the readers for N seconds in all.

Each turn takes a minute at most and goes to the reader with the least processor time so far. At the end the command
prints a table of all runs with this folder.

The exit status is 1 if a reader raised an exception, took longer than 20 seconds for one input, or used more than 2
GiB. The input and the log stay in DIR. DIR/corpus/READER contains the inputs that reach new code, with which the next
run begins. Each reader runs in a separate forked process.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pyprof"]):
    from tests.fuzz.readers import READERS
    from tests.fuzz.seeds import write
from tests.fuzz import ledger

LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1")
_RUNS = re.compile(r"number_of_executed_units:\s*(\d+)")
_COVERED = re.compile(r"cov: (\d+)")


def fuzz(folder: Path, name: str, seconds: int) -> None:
    """Fuzz a reader. The function runs in a forked child and never returns."""
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    places = [str(folder / "corpus" / name), f"-artifact_prefix={folder}/{name}-"]
    atheris.Setup([sys.argv[0], *places, f"-max_total_time={seconds}", *LIMITS], READERS[name])
    atheris.Fuzz()


def run(folder: Path, name: str, seconds: int) -> bool:
    """Fuzz a reader in a child, add the turn to the ledger, and return True if the reader did not fail."""
    child = os.fork()
    if not child:
        try:
            fuzz(folder, name, seconds)
        finally:
            os._exit(1)
    _, status, used = os.wait4(child, 0)
    text = (folder / f"{name}.log").read_text(errors="replace")
    runs, covered = _RUNS.findall(text), _COVERED.findall(text)
    inputs, edges = int(runs[-1]) if runs else 0, int(covered[-1]) if covered else 0
    ledger.add(folder, name, used.ru_utime + used.ru_stime, inputs, edges, status == 0)
    print(f"{name:16}{seconds:7} s{inputs:12,}{edges:8}", end="", flush=True)
    print("" if status == 0 else f"  FAILED, see {folder}/{name}.log", flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="in all; 0: only the table")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    chosen = parser.parse_args()
    unknown = set(chosen.readers) - READERS.keys()
    if unknown:
        parser.error(f"no such reader: {', '.join(sorted(unknown))}")
    logging.disable()
    names, folder = chosen.readers or list(READERS), chosen.corpus
    all_held = True
    if chosen.seconds:
        write(folder / "corpus", names)
        print(f"{'reader':16}{'time':>9}{'inputs':>12}{'edges':>8}", flush=True)
        seconds = ledger.turn_s(chosen.seconds, len(names))
        for _ in range(ledger.turns(chosen.seconds, len(names))):
            all_held &= run(folder, ledger.next_of(ledger.load(folder), names), seconds)
        print()
    print(*ledger.table(ledger.load(folder), names), sep="\n")
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(main())
