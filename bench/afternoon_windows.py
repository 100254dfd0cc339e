"""The agent's windows in the benchmark bench.operators_afternoon: missing time, and sums against the services' own
clocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.afternoon_host import READ_TOKEN, SERVICES, URL, Host, fetch, until
from pyprof.fleet.agent import spool_query
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.lazy_dataclasses import dataclass

HOUR_NS = 3600 * 10**9
MIN_JUDGED_S, MIN_GAP_S = 0.2, 0.02
"""Minimum processor time in seconds of a window whose sum is judged, and minimum time in seconds between two windows
that counts as a gap.
"""


@dataclass(frozen=True)
class Window:
    """One segment of the spool. Times are those of the machine's monotonic clock, whatever the agent's wall clock
    was.
    """

    service: str
    start_ns: int
    end_ns: int
    total_ns: int


def windows(spool: Path) -> list[Window]:
    """Read all segments of the spool. The modification time of the file shows whether the agent's clock was set by
    whole hours, which is corrected.
    """
    found, ahead_ns = [], time.time_ns() - time.monotonic_ns()
    for name in spool_query.segments(str(spool), TimeSpan(0, 1 << 62)):
        profile = spool_query.profile_of(str(spool), [name], "cpu", "all")
        wrong = round((name.end_ns - (spool / name.path).stat().st_mtime_ns) / HOUR_NS) * HOUR_NS
        start_ns = profile.start_ns - wrong - ahead_ns
        found.append(Window(name.service, start_ns, start_ns + profile.duration_ns, profile.total))
    return found


def lost_s(found: Sequence[Window], began_ns: int, ended_ns: int) -> float:
    """Return the total length in seconds of the gaps between windows that end between two times since the epoch. In a
    gap, no service has a window.
    """
    ahead_ns = time.time_ns() - time.monotonic_ns()
    spans = sorted({(each.start_ns + ahead_ns, each.end_ns + ahead_ns) for each in found})
    gaps = [(end, later) for (_, end), (later, _) in pairwise(spans) if began_ns <= later < ended_ns]
    return sum((later - end) / 1e9 for end, later in gaps if later - end > MIN_GAP_S * 1e9)


def sums(found: Sequence[Window], clock: Path) -> list[str]:
    """Compare the processor time in the windows with the services' own clocks, and return a line for each service."""
    lines = []
    for service in SERVICES:
        times = np.loadtxt(clock / service, np.float64, comments=None)[:-1]
        own = [each for each in found if each.service == service]
        spans = np.array([(each.start_ns, each.end_ns) for each in own], np.float64)
        ran_ns = np.diff(np.interp(spans, times[:, 0], times[:, 1]), axis=1)[:, 0]
        total_ns = np.array([each.total_ns for each in own], np.float64)
        judged = ran_ns >= MIN_JUDGED_S * 1e9
        worst = float(np.abs(total_ns[judged] / ran_ns[judged] - 1).max()) if judged.any() else 0.0
        zeros = int(((total_ns == 0) & (ran_ns > 0.05e9)).sum())
        lines.append(
            f"{service}: {len(own)} windows, {total_ns.sum() / 1e9:.2f} s, own clock {ran_ns.sum() / 1e9:.2f} s "
            f"({100 * (total_ns.sum() / ran_ns.sum() - 1):+.2f} %), worst of {judged.sum()} windows above "
            f"{MIN_JUDGED_S} s {100 * worst:.1f} %, {zeros} false zeros"
        )
    return lines


def segment_counts(host: Host) -> list[str]:
    """Count the segments in the spool, at the server, in the answers of its database and in the queue. Return the
    comparison as lines.
    """
    spool, data = host.folder / "spool/data", host.folder / "disk/data/segments"
    names = spool_query.segments(str(spool), TimeSpan(0, 1 << 62))
    kept = {str(each.relative_to(data / "staging")) for each in (data / "staging").rglob("*.pb.gz")}
    queued = {str(Path(*each.parts[-3:])) for each in (spool / "queue").rglob("*.pb.gz")}
    refused = len(list((spool / "refused").rglob("*.pb.gz")))
    lost = {name.path for name in names} - kept - queued

    def indexed() -> list[dict[str, int]]:
        span = f"from=0&to={int(time.time()) + 7200}"
        status, body = fetch(f"{URL}/api/v1/services?{span}", READ_TOKEN)
        return list(json.loads(body)["services"]) if status == 200 else []

    until(lambda: sum(row["windows"] for row in indexed()) >= len(kept), 60, "the database has all windows")
    counted = sum(row["windows"] for row in indexed())
    return [
        f"{len(names)} segments in the spool, {len(kept)} at the server, {counted} windows in its answers, "
        f"{len(queued)} in the queue, {refused} refused, {len(lost)} lost"
    ]
