"""Sums of a window by the kernel's clocks: samples say where a process spent its time, clocks say how much it was.

The agent drops samples to keep its budget, and a busy host misses sampling times. The samples of each process are
therefore scaled to the processor time that the process really had. A process without any sample gets a row without
functions, "[not sampled]".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.agent.process_clocks import ProcessTime
from pyprof.model.marker_frames import NO_SAMPLE, UNSAMPLED
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo
from pyprof.model.stack_quality import summary_of_part
from pyprof.model.walk import Trust
from pyprof.records import replace

_ROW_NS = 100_000_000
"""Approximate length in nanoseconds of the profile rows that represent unsampled time."""
_MAX_ROWS = 64
_NO_SAMPLE = Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, NO_SAMPLE.title, NO_SAMPLE)


def with_exact_sums(profile: Profile, times: Sequence[ProcessTime]) -> Profile:
    """Return the window's profile with the processor time of each process in `times` as the sum of its values.

    A process without an entry in `times` was too short-lived to be read; its samples stay as they are. What its parent
    has waited for beyond that is unsampled time of the parent. Rows for unsampled time count no sample.

    Args:
        profile: A window of on-CPU samples; its primary value is in nanoseconds.
        times: Processor times in the same window.
    """
    process_of = _processes(profile, times)
    row_process = process_of[profile.thread]
    values = profile.values.copy()
    values[_is_unsampled(profile), 0] = 0
    missing: list[tuple[ProcessTime, int]] = []
    order = np.argsort(row_process, kind="stable")
    ends = np.searchsorted(row_process[order], np.arange(-1, len(times)), "right")
    unseen_ns = sum(each.children_ns for each in times)
    lacking = 1 - min(int(values[row_process < 0, -1].sum()) / unseen_ns, 1) if unseen_ns else 0.0
    for at, each in enumerate(times):
        rows = order[ends[at] : ends[at + 1]]
        total = each.ns + _unread(profile, rows, each.unread_ns)
        if values[rows, -1].any():
            values[rows, -1] = _scaled(values[rows, -1], total)
            total = 0
        if total := total + round(lacking * each.children_ns):
            missing.append((each, total))
    scaled = replace(profile, values=values)
    if missing:
        scaled = _with_rows(scaled, _merge_kin(missing))
    return replace(scaled, summary=summary_of_part(profile.summary, scaled))


def _processes(profile: Profile, times: Sequence[ProcessTime]) -> npt.NDArray[np.int64]:
    """Return the (threads,) index into `times` of each thread's process, -1 if there is none."""
    by_pid: dict[int, list[int]] = {}
    for at, each in enumerate(times):
        by_pid.setdefault(each.pid, []).append(at)
    return np.array(
        [
            min(by_pid.get(thread.pid, ()), key=lambda at: abs(times[at].began_ns - thread.process_started), default=-1)
            for thread in profile.threads
        ],
        np.int64,
    )


def _is_unsampled(profile: Profile) -> npt.NDArray[np.bool_]:
    """Return the (n,) mask of the profile's rows that represent unsampled time."""
    is_unsampled = np.array([frame.mark in UNSAMPLED for frame in profile.frames] + [False], np.bool_)
    found: npt.NDArray[np.bool_] = is_unsampled[profile.frame[profile.stack]]
    return found


def _unread(profile: Profile, rows: npt.NDArray[np.int64], unread_ns: int) -> int:
    """Return the sampled time between the last reading of a process's clock and the window's end."""
    if not unread_ns:
        return 0
    since_ns = profile.start_ns + profile.duration_ns - unread_ns
    return int(profile.values[rows[profile.time_ns[rows] > since_ns], -1].sum())


def _scaled(values: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """Return the values scaled to exactly this total, in the same proportions."""
    upto = np.cumsum(values)
    found: npt.NDArray[np.int64] = np.diff(np.rint(upto * (total / upto[-1])).astype(np.int64), prepend=0)
    return found


def _merge_kin(missing: Sequence[tuple[ProcessTime, int]]) -> list[tuple[ProcessTime, int]]:
    """Merge the unsampled time of processes that lived too short to be seen: one entry for each name and labels.

    The entry names the last of them, whose labels the agent remembers longest.
    """
    found: dict[tuple[object, ...], tuple[ProcessTime, int]] = {}
    for each, total in missing:
        key = (each.name, each.kin) if each.kin else (each.pid, each.began_ns)
        found[key] = each, total + (found[key][1] if key in found else 0)
    return list(found.values())


def _with_rows(profile: Profile, missing: Sequence[tuple[ProcessTime, int]]) -> Profile:
    """Return the profile with additional rows without functions for the unsampled time of these processes."""
    node, frame = len(profile.parent), len(profile.frames)
    threads = [
        ThreadInfo(each.pid, each.pid, each.name, each.name, each.began_ns, each.began_ns) for each, _ in missing
    ]
    thread: list[int] = []
    pieces: list[npt.NDArray[np.int64]] = []
    moments: list[npt.NDArray[np.int64]] = []
    for at, (_, total) in enumerate(missing, len(profile.threads)):
        count = min(max(total // _ROW_NS, 1), _MAX_ROWS)
        thread += [at] * count
        pieces.append(_scaled(np.ones(count, np.int64), total))
        moments.append(profile.start_ns + profile.duration_ns * (2 * np.arange(count) + 1) // (2 * count))
    n = len(thread)
    values = np.zeros((n, profile.values.shape[1]), np.int64)
    values[:, -1] = np.concatenate(pieces)
    return replace(
        profile,
        frames=(*profile.frames, _NO_SAMPLE),
        parent=np.append(profile.parent, np.int32(0)),
        frame=np.append(profile.frame, np.int32(frame)),
        threads=(*profile.threads, *threads),
        time_ns=np.append(profile.time_ns, np.concatenate(moments)),
        stack=np.append(profile.stack, np.full(n, node, np.int32)),
        thread=np.append(profile.thread, np.array(thread, np.int32)),
        values=np.concatenate([profile.values, values]),
        state=None if profile.state is None else np.append(profile.state, np.zeros(n, profile.state.dtype)),
        cpu=None if profile.cpu is None else np.append(profile.cpu, np.full(n, -1, np.int32)),
    )
