"""The names of generated JavaScript code, compared with those that V8 itself writes in the same run."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from pathlib import Path

import pyprof
from pyprof.model.profile import Frame, Profile
from tests.accuracy.thrown import Verdict
from tests.live.support.recording import record, running
from tests.support import need

PROGRAM = Path(__file__).parent.parent / "jit" / "programs" / "ladder.js"
MODES = {"baseline": ("--no-opt", "--always-sparkplug"), "tiered": ()}
"""Options of the program by their name. The map has no names of interpreted functions."""
MODULE = "[jit] v8"
_FUNCTION = re.compile(r"(?:JS|LazyCompile|Function|Script|Eval):[*^+~']*(\S*) .*:(\d+):\d+")
MAX_RECORDINGS = 20
MAX_DIFFERENT = 0.005
"""Maximum share of frames with another name: V8 may move or free code between a sample and the look at it."""


class V8Map:
    """The functions in a perf map that V8 has written."""

    def __init__(self, text: str) -> None:
        rows = [line.split(" ", 2) for line in text.split("\n")[:-1]]  # V8 may be writing the last line
        found = sorted((int(start, 16), int(size, 16), name) for start, size, name in rows)
        self._starts = [start for start, _, _ in found]
        self._rows = found
        self._largest = max((size for _, size, _ in found), default=0)

    def find(self, pc: int) -> str | None:
        """Return the function at an address. None if it is not JavaScript, or if code of two names was there."""
        names: set[str | None] = set()
        at = bisect_right(self._starts, pc) - 1
        while at >= 0 and self._starts[at] > pc - self._largest:
            start, size, name = self._rows[at]
            if pc < start + size:
                found = _FUNCTION.fullmatch(name)
                names.add((found[1] or f"(anonymous:{found[2]})") if found else None)
            at -= 1
        return names.pop() if len(names) == 1 else None


def sample_names(mode: str, collector: str, folder: Path, samples: int, node: str = "node") -> Verdict:
    """Record a program until there are enough frames in code that V8 names, and compare each frame's function.

    Args:
        mode: A key of MODES.
        collector: Name of the collector.
        folder: Folder for the outputs.
        samples: Minimum number of frames.
        node: The program that runs JavaScript.

    Returns:
        The number of compared frames, of equal ones, and the differences: "ours instead of theirs".
    """
    counts: Counter[tuple[str, str]] = Counter()
    kept = folder / "names.pyprof"
    with running(need(node), "--perf-basic-prof", *MODES[mode], PROGRAM) as process:
        path = Path(f"/tmp/perf-{process.pid}.map")
        try:
            for _ in range(MAX_RECORDINGS):
                options = ("--collector", collector, "--native", "all", "--save", str(kept))
                record(process.pid, folder, *options, seconds=min(10.0, 1 + samples / 4000), rate=999)
                counts += compare(pyprof.load(kept), V8Map(path.read_text()))
                if counts.total() >= samples:
                    break
        finally:
            path.unlink(missing_ok=True)
    equal = sum(count for (ours, theirs), count in counts.items() if ours == theirs)
    wrong = {f"{ours} instead of {theirs}": count for (ours, theirs), count in counts.items() if ours != theirs}
    return Verdict(counts.total(), equal, 0, wrong)


def compare(profile: Profile, named: V8Map) -> Counter[tuple[str, str]]:
    """Return how many frames of a profile have which name here and in V8's map."""
    found: Counter[tuple[str, str]] = Counter()
    for leaf, count in Counter(profile.stack.tolist()).items():
        for frame in profile.path(leaf):
            theirs = named.find(frame.lookup) if is_generated(profile, frame) else None
            if theirs is not None:
                found[frame.lines[-1].function if frame.lines else frame.title, theirs] += count
    return found


def is_generated(profile: Profile, frame: Frame) -> bool:
    return frame.module >= 0 and profile.modules[frame.module].path == MODULE
