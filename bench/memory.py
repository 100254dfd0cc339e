"""Does the memory of a long recording stay flat? 8 threads at 1 kHz, as many minutes as one likes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.moments import alone
from bench.targets import THREADS8

EVERY_S = 10.0


def memory(console: Console, minutes: float) -> float:
    """MB at most, of pyprof's own process while it records and while it writes."""
    with tempfile.TemporaryDirectory() as folder, alone(THREADS8.build(Path(folder))(60 * minutes + 30)) as target:
        time.sleep(0.5)
        command = [sys.executable, "-m", "pyprof", "record", "-q", "-p", str(target.pid), "-r", "1000"]
        with subprocess.Popen([*command, "-o", f"{folder}/out.html"]) as recording:
            seen = []
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                time.sleep(min(EVERY_S, max(end - time.monotonic(), 0.1)))
                seen.append(_status_mb(recording.pid, "VmRSS"))
            recording.send_signal(signal.SIGINT)
            most = max(seen)
            while recording.poll() is None:
                most = max(most, _status_mb(recording.pid, "VmHWM"))
                time.sleep(0.05)
        target.kill()
    middle = seen[len(seen) // 2]
    console.print(
        f"8 threads at 1,000 Hz for {minutes:g} minutes: {seen[0]:.0f} MB after {EVERY_S:g} s, {middle:.0f} in the "
        f"middle, {seen[-1]:.0f} at the end, {most:.0f} at most\n"
    )
    return most


def _status_mb(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(field)), 0.0)
