"""From a closed window to a Profile: look names up, make values. No I/O but that of the symbolizer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.profile import Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.objfile.images import ImageStore
from pyprof.records import replace
from pyprof.session.inlined import inlined_inside
from pyprof.session.recorder import Window
from pyprof.session.summarize import summarize
from pyprof.symbolize.described import DescribedCode
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import FunctionStart, InterpreterName, Symbolizer

SOURCE_BUDGET_S = 5.0
"""Most seconds spent on source lines and inlined functions; what is left then goes without, and the summary says so."""


def assemble(
    window: Window,
    images: ImageStore,
    names: NameCache,
    name: InterpreterName,
    *,
    title: str,
    rate_hz: float,
    mode: str,
    code: DescribedCode | None = None,
    starts: FunctionStart | None = None,
) -> Profile:
    """Resolve the window's frames and make it a profile. rate_hz: as wanted. mode: cpu, wall or offcpu.

    names: outlives the window. code: names of code that no file describes. starts: of functions that have no name.
    """
    period_ns = round(1e9 / rate_hz)
    before = names.counts
    symbolizer = Symbolizer(images, names, window.spaces, SOURCE_BUDGET_S, code, name, starts)
    resolved = symbolizer.resolve(window.stacks.frames)
    threads, thread = _threads(window)
    parent = np.array(window.stacks.parent, np.int32)
    frame = np.array(window.stacks.frame, np.int32)
    values = _values(window, period_ns)
    profile = Profile(
        value_types=(ValueType("samples", "count"), ValueType(mode, "nanoseconds")),
        period_ns=period_ns,
        start_ns=window.start_ns,
        duration_ns=window.duration_ns,
        title=title,
        frames=resolved.frames,
        parent=parent,
        frame=frame,
        modules=resolved.modules,
        threads=threads,
        time_ns=window.time_ns,
        stack=window.node,
        thread=thread,
        values=values,
        state=window.state,
        cpu=window.cpu,
        summary=Summary(),
    )
    summary = replace(summarize(window, profile, names.diagnostics, rate_hz), names=names.counts - before)
    return inlined_inside(replace(profile, summary=summary))


def _values(window: Window, period_ns: int) -> npt.NDArray[np.int64]:
    """(samples, nanoseconds) of each row. A stretch of known length has as many samples as sampling times were in it:
    what is left of a period counts for the thread's next one, so that a thread has as many as its time has periods.
    """
    known = window.length_ns >= 0
    length_ns = np.where(known, window.length_ns, window.weight * period_ns)
    samples = np.ones_like(length_ns)
    rows = np.flatnonzero(known)
    rows = rows[np.argsort(window.tid[rows], kind="stable")]
    if len(rows):
        tid = window.tid[rows]
        total = np.cumsum(length_ns[rows])
        first = np.flatnonzero(np.diff(tid, prepend=tid[0] - 1))
        before = np.concatenate([[0], total])[first]
        own = total - np.repeat(before, np.diff(np.append(first, len(rows))))
        periods = (own + period_ns // 2) // period_ns
        samples[rows] = np.diff(periods, prepend=0)
        samples[rows[first]] = periods[first]
    return np.stack([samples, length_ns], axis=1)


def _threads(window: Window) -> tuple[tuple[ThreadInfo, ...], npt.NDArray[np.int32]]:
    """Threads in order of pid and tid, and the index of each row's thread."""
    known = {t.tid: t for t in window.threads}
    tids, inverse = np.unique(window.tid, return_inverse=True)
    infos = [known.get(tid, ThreadInfo(tid, tid, str(tid), str(tid))) for tid in tids.tolist()]
    order = sorted(range(len(infos)), key=lambda i: (infos[i].pid, infos[i].tid))
    place = np.zeros(len(infos), np.int32)
    place[order] = np.arange(len(infos), dtype=np.int32)
    return tuple(infos[i] for i in order), place[inverse].astype(np.int32)
