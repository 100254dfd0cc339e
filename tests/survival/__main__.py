"""`make test-kills`: kill a thousand profilers, a hundred recordings and a hundred servers at random moments.

It takes twenty minutes and needs permission to trace.
"""

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
from tests.survival.power import cut_power
from tests.survival.recordings import Left, kill_recordings
from tests.survival.servers import kill_servers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.survival", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="in all (%(default)s)")
    parser.add_argument("--recordings", type=int, default=100, help="that are killed (%(default)s)")
    parser.add_argument("--servers", type=int, default=100, help="that are killed in the midst of ingest (%(default)s)")
    parser.add_argument("--power-cuts", type=int, default=0, help="of a virtual machine that records (%(default)s)")
    parser.add_argument("--kernel", type=Path, help="where its kernel's package is unpacked (tests/survival/power.py)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the moments")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    rng = random.Random(arguments.seed)
    warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        failed += _recordings(kill_recordings(Path(folder), arguments.recordings, rng), "kills")
        if arguments.servers:
            sent = kill_servers(Path(folder) / "server", arguments.servers, rng, lambda line: print(line, flush=True))
            print(f"servers: {arguments.servers} kills, {len(sent.acknowledged):,} windows: held", flush=True)
        if arguments.power_cuts:
            failed += _recordings(cut_power(Path(folder), arguments.kernel, arguments.power_cuts, rng), "power cuts")
        os.environ.setdefault(BUILDS, folder)
        for case in CASES if arguments.kills else ():
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


def _recordings(left: list[Left], what: str) -> bool:
    """Print the results, and return True if a recording lacks something or more than its last second."""
    lost = sorted(each.lost_s for each in left)
    wrong = [each.wrong for each in left if each.wrong]
    late = sum(each > 1 for each in lost)
    if lost:
        print(f"recordings: {len(left)} {what}: {'; '.join(wrong) or 'held'}", flush=True)
        print(
            f"    lost: {lost[len(lost) // 2]:.2f} s in the middle, {lost[-1]:.2f} s at most; over 1 s: {late}",
            flush=True,
        )
    return bool(wrong or late)


if __name__ == "__main__":
    raise SystemExit(main())
