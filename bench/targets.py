"""What is sampled: programs that count their own work, and some of them the gaps in their own time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "targets"


@dataclass(frozen=True)
class Target:
    """name: as in --targets. what: for the reader. needs: program without which it cannot run. build: (folder) ->
    (seconds) -> command; the command ends by itself and prints {"work": ..., "gaps_10ns": ...}. busy: threads that run.
    """

    name: str
    what: str
    needs: str
    build: Callable[[Path], Callable[[float], list[str]]]
    busy: int = 1

    @property
    def possible(self) -> bool:
        return shutil.which(self.needs) is not None


def _compiled(source: str, *words: str, compiler: str = "gcc") -> Callable[[Path], Callable[[float], list[str]]]:
    def build(folder: Path) -> Callable[[float], list[str]]:
        program = folder / Path(source).stem
        flags = ["-O2", "-fomit-frame-pointer", "-pthread"]
        subprocess.run([compiler, *flags, "-o", str(program), str(SOURCES / source)], check=True)
        return lambda seconds: [str(program), f"{seconds:g}", *words]

    return build


def _script(interpreter: str, source: str) -> Callable[[Path], Callable[[float], list[str]]]:
    return lambda folder: lambda seconds: [interpreter, str(SOURCES / source), f"{seconds:g}"]


TARGETS = (
    Target("ladder", "one busy thread, 30 frames", "gcc", _compiled("ladder.c", "1")),
    Target("ladder4", "four busy threads, 30 frames each", "gcc", _compiled("ladder.c", "4"), 4),
    Target("threads", "500 threads of which 10 run", "gcc", _compiled("ladder.c", "10", "490"), 10),
    Target("deep", "2,000 frames", "gcc", _compiled("deep.c", "2000")),
    Target("deep4000", "4,000 frames, more than the kernel copies", "gcc", _compiled("deep.c", "4000")),
    Target("tower", "C++: templates, containers, exceptions", "g++", _compiled("tower.cc", compiler="g++")),
    Target("node", "node: JSON, sorting, regular expressions", "node", _script("node", "work.js")),
    Target("python", "CPython with extension modules", sys.executable, _script(sys.executable, "work.py")),
)
