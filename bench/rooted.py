"""Profilers of a newer distribution, samply and perf, which are in a folder that contains this distribution.

BENCH_ROOT names the folder: a root with usr/bin/samply or usr/bin/perf and their libraries. The programs run on this
machine's files, with that root's loader and libraries.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
from pathlib import Path

from bench.tools import Got

ROOT_VARIABLE = "BENCH_ROOT"
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_SHOWN = f'echo 1 > "$1" && mount --bind "$1" {_PARANOID} && shift && exec "$@"'


def _root() -> Path:
    return Path(os.environ.get(ROOT_VARIABLE) or "/")


def has(program: str) -> bool:
    return ROOT_VARIABLE in os.environ and (_root() / "usr/bin" / program).exists()


def command(program: str) -> list[str]:
    """Return the command that runs a program of the root that BENCH_ROOT names."""
    root = _root()
    (loader,) = sorted(root.glob("lib64/ld-linux-*.so.*"))[:1] or [Path("/lib64/ld-linux-x86-64.so.2")]
    libraries = root / f"usr/lib/{platform.machine()}-linux-gnu"
    return [str(loader), "--library-path", str(libraries), str(root / "usr/bin" / program)]


def samply(pid: int, rate: float, seconds: float, folder: Path) -> list[str]:
    """Return the command for samply. It cannot limit the duration of recording a process, so it gets SIGINT in the end.

    If the machine counts no hardware events, samply requires 1 in perf_event_paranoid. It gets such a file in a
    separate mount namespace.
    """
    record = [
        "timeout", "--foreground", "-s", "INT", f"{seconds:g}", *command("samply"), "record", "-p", str(pid), "-r",
        f"{rate:g}", "--save-only", "--unstable-presymbolicate", "-o", str(folder / "out.json.gz"),
    ]  # fmt: skip
    if int(Path(_PARANOID).read_text()) < 2 or os.geteuid() != 0:
        return record
    shown = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SHOWN, "sh", str(folder / "paranoid")]
    return [*shown, *record]


def samply_got(folder: Path) -> Got:
    with gzip.open(folder / "out.json.gz", "rt") as file:
        profile = json.load(file)
    samples = sum(int(thread["samples"]["length"]) for thread in profile["threads"])
    if not samples:
        raise ValueError("no samples")
    return Got(samples, None)
