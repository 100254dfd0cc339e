"""When things happen in a recording by pyprof: the first sample, the end, the written file.

`python -m bench.moments FILE ARGUMENT...` is `pyprof ARGUMENT...` with two hooks, and writes down the times; run as a
child by moments().
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Moments:
    """Seconds. first: from the start of the command until the first samples are unwound. written: from the end of the
    recording to the end of the command. cpu_s, samples: of all of it.
    """

    first_s: float
    written_s: float
    cpu_s: float
    samples: int


def moments(folder: Path, pid: int, rate: float, seconds: float, *options: str) -> Moments | None:
    """Record a process. None if that failed."""
    from bench.tools import run

    times, summary = folder / "moments.json", folder / "summary.json"
    times.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "bench.moments", str(times), "record", "-q", "-p", str(pid), "-r", f"{rate:g}",
        "-d", f"{seconds:g}", "-o", str(folder / "out.html"), "--summary", str(summary), *options,
    ]  # fmt: skip
    start = time.time()
    cost = run(command, seconds + 120)
    end = time.time()
    try:
        seen, samples = json.loads(times.read_text()), int(json.loads(summary.read_text())["samples"])
        return Moments(seen["first"] - start, end - seen["end"], cost.cpu_s, samples) if samples else None
    except (OSError, ValueError, KeyError):
        return None


def _hooked(times: Path, arguments: list[str]) -> int:
    from pyprof.cli.main import run
    from pyprof.session.recorder import Recorder
    from pyprof.session.session import Session

    seen: dict[str, float] = {}
    add, record = Recorder.add, Session.run

    def hooked_add(self: Any, batch: Any) -> None:
        add(self, batch)
        if len(batch):
            seen.setdefault("first", time.time())

    def hooked_record(self: Any, *rest: Any) -> Any:
        try:
            return record(self, *rest)
        finally:
            seen["end"] = time.time()

    Recorder.add, Session.run = hooked_add, hooked_record  # type: ignore[method-assign, assignment]
    code = run(arguments)
    times.write_text(json.dumps(seen))
    return code


def alone(command: list[str]) -> subprocess.Popen[str]:
    """A target whose output nobody wants."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)


if __name__ == "__main__":
    sys.exit(_hooked(Path(sys.argv[1]), sys.argv[2:]))
