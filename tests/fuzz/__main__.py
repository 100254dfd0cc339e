"""`python -m tests.fuzz --seconds N [READER ...]`: N seconds in all, shared evenly; a table of what was run.

Exits 1 where a reader raised, took longer than 20 seconds for one input, or used more than 2 GiB; the input and the log
stay in build/fuzz. corpus/READER there holds the inputs that reach new code. Each reader runs in a fork of its own.
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

FOLDER = Path("build/fuzz")
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1")
_RUNS = re.compile(r"number_of_executed_units:\s*(\d+)")
_COVERED = re.compile(r"cov: (\d+)")


def fuzz(name: str, seconds: int) -> None:
    """In a child: never returns."""
    log = os.open(FOLDER / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    places = [str(FOLDER / "corpus" / name), f"-artifact_prefix={FOLDER}/{name}-"]
    atheris.Setup([sys.argv[0], *places, f"-max_total_time={seconds}", *LIMITS], READERS[name])
    atheris.Fuzz()


def run(name: str, seconds: int) -> tuple[bool, str]:
    """(did it hold?, what was run)."""
    child = os.fork()
    if not child:
        try:
            fuzz(name, seconds)
        finally:
            os._exit(1)
    held = os.waitpid(child, 0)[1] == 0
    text = (FOLDER / f"{name}.log").read_text(errors="replace")
    runs, covered = _RUNS.findall(text), _COVERED.findall(text)
    failed = "" if held else f"  FAILED, see {FOLDER}/{name}.log"
    line = f"{name:16}{seconds:7} s{int(runs[-1]) if runs else 0:12,}{covered[-1] if covered else '0':>8}{failed}"
    return held, line


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="in all")
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    chosen = parser.parse_args()
    unknown = set(chosen.readers) - READERS.keys()
    if unknown:
        parser.error(f"no such reader: {', '.join(sorted(unknown))}")
    logging.disable()
    names = chosen.readers or list(READERS)
    write(FOLDER / "corpus", names)
    print(f"{'reader':16}{'time':>9}{'inputs':>12}{'edges':>8}", flush=True)
    all_held = True
    for name in names:
        held, line = run(name, max(chosen.seconds // len(names), 1))
        all_held &= held
        print(line, flush=True)
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(main())
