"""`make test-kills`: a thousand profilers are killed at random moments. Some minutes; needs the rights to trace."""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import warnings
from pathlib import Path

from tests.collectors.targets import start
from tests.support import BUILDS, PROGRAMS, build
from tests.survival.campaign import CASES, kill_profilers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.survival", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the moments")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    rng = random.Random(arguments.seed)
    warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault(BUILDS, folder)
        for case in CASES:
            program = build(PROGRAMS / f"{case.command[0]}.c", Path(folder) / case.command[0], "-O1", "-pthread")
            target = start([*case.prefix, str(program), *case.command[1:]])
            try:
                result = kill_profilers(case, target, -(-arguments.kills // len(CASES)), rng)
            finally:
                target.process.kill()
            wrong = case.wrong(result)
            failed += bool(wrong)
            counted = f"; counted {result.counted}" if result.counted else ""
            print(f"{case.name}: {result.kills} kills: {wrong or 'held'}", flush=True)
            print(f"    {'; '.join(result.printed.splitlines())}{counted}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
