"""Check which changes `pyprof diff` finds in real recordings: of a program with one function slowed, and of the same
program twice.

    python -m bench.differences record FOLDER [--pairs 20] [--seconds 60]
    python -m bench.differences judge FOLDER

`record` runs both builds of bench/targets/shares.c at the same time and saves a recording of each, with the number of
units of work; existing recordings are kept. `judge` compares them by time per unit of work.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from pyprof.model.profile import Profile

BUILDS = {"usual": 100, "slowed": 110}
"""Builds of the target, with the value of the macro SLOWED: the cost of its function `slowed` in percent."""
SOURCE = Path(__file__).parent / "targets" / "shares.c"
_SETTLE_S = 1.0
_LOOK_S = 0.02


def record(folder: Path, pairs: int, seconds: int, rate: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, slowed in BUILDS.items():
        # It is the same program, built twice: the file name is the same, the build ID and the addresses differ.
        (folder / name).mkdir(exist_ok=True)
        command = ["gcc", "-O2", "-g", f"-DSLOWED={slowed}", str(SOURCE), "-o", str(folder / name / "shares")]
        subprocess.run(command, check=True)
    for pair in range(pairs):
        if not all(_units(folder, name, pair).exists() for name in BUILDS):
            _record_pair(folder, pair, seconds, rate)


def _recording(folder: Path, name: str, pair: int) -> Path:
    return folder / f"{name}-{pair:02}.pyprof"


def _units(folder: Path, name: str, pair: int) -> Path:
    return folder / f"{name}-{pair:02}.json"


def _record_pair(folder: Path, pair: int, seconds: int, rate: int) -> None:
    """Record both builds at once, each on one processor. The builds change processors from pair to pair."""
    work = {name: folder / f"{name}.work" for name in BUILDS}
    targets = []
    for at, (name, counter) in enumerate(work.items()):
        counter.write_bytes(bytes(8))
        command = [
            "taskset",
            "-c",
            str((at + pair) % 2),
            str(folder / name / "shares"),
            str(counter),
            str(seconds + 20),
        ]
        targets.append(subprocess.Popen(command))
    time.sleep(_SETTLE_S)
    words = [sys.executable, "-m", "pyprof", "record", "-q", "-r", str(rate), "-d", str(seconds), "-o"]
    recorders = [
        subprocess.Popen([*words, str(_recording(folder, name, pair)), "-p", str(target.pid)])
        for name, target in zip(BUILDS, targets, strict=True)
    ]
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in BUILDS}
    while any(recorder.poll() is None for recorder in recorders):
        for name, counter in work.items():
            seen[name].append((time.time(), struct.unpack("<Q", counter.read_bytes())[0]))
        time.sleep(_LOOK_S)
    for target in targets:
        target.kill()
        target.wait()
    for name in BUILDS:
        _units(folder, name, pair).write_text(json.dumps(seen[name]))


def judge(folder: Path) -> None:
    """Compare all pairs of recordings, and print the result of each comparison."""
    from pyprof import load

    pairs = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("usual-*.json"))
    sides = {(name, pair): load(_recording(folder, name, pair)) for name in BUILDS for pair in pairs}
    slowed = [_found(folder, sides, ("usual", pair), ("slowed", pair)) for pair in pairs]
    print(f"slowed: found in {sum('slowed' in each for each in slowed)} of {len(slowed)}, ", end="")
    print(f"another function in {sum(bool(each - {'slowed'}) for each in slowed)}")
    for name in BUILDS:
        same = [_found(folder, sides, (name, one), (name, two)) for one, two in pairwise(pairs)]
        print(f"{name}, one recording and the next: something found in {sum(map(bool, same))} of {len(same)}")


def _found(folder: Path, sides: dict[tuple[str, int], Profile], one: tuple[str, int], two: tuple[str, int]) -> set[str]:
    """Compare two recordings, print details, and return the functions whose own time per unit of work changed
    significantly.
    """
    before, after = sides[one], sides[two]
    per = _work(folder, one, before), _work(folder, two, after)
    found = before.diff(after, per=per)
    names = {change.name for change in found.functions if change.own.significant}
    slowed = next(change for change in found.functions if change.name == "slowed")
    print(
        f"{one[0]} {one[1]}, {two[0]} {two[1]}: {len(before.stack)} and {len(after.stack)} samples, "
        f"all {100 * found.whole.relative:+.1f} %, slowed {100 * slowed.own.relative:+.1f} %: "
        f"{', '.join(sorted(names)) or 'nothing'}"
    )
    return names


def _work(folder: Path, which: tuple[str, int], profile: Profile) -> float:
    """Return the units of work that the program did while the profile was recorded."""
    times, counts = zip(*json.loads(_units(folder, *which).read_text()), strict=True)
    begin = profile.start_ns / 1e9
    first, last = np.interp([begin, begin + profile.duration_ns / 1e9], times, counts)
    return float(last - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=999)
    arguments = parser.parse_args()
    if arguments.what == "record":
        record(arguments.folder, arguments.pairs, arguments.seconds, arguments.rate)
    else:
        judge(arguments.folder)


if __name__ == "__main__":
    main()
