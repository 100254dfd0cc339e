"""Waits of idle threads: pools that wait for work, event loops, processes that supervise others.

A wait is idle if all functions between the root of its thread and the system call belong to one known loop that waits
for work (model/idle_loops.py). It is also idle if the waiting function is `main`, which no request runs. Every other
wait is shown: a truncated stack; a wait for a processor, for the GIL or in uninterruptible sleep; a function of no
known loop.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.model.functions import START_UP
from pyprof.model.idle_loops import NATIVE, PYTHON, PYTHON_ROOTS, STARTS
from pyprof.model.marker_frames import MarkKind
from pyprof.model.modules import base_name
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.reasons import said
from pyprof.model.sample_filter import selected
from pyprof.records import replace

Mask = npt.NDArray[np.bool_]

MODES = frozenset({"offcpu", "lock"})
"""Modes of recording whose idle waits are hidden unless the user asks for them."""
_EVENT_CALLS = frozenset(
    f"{call}]"
    for call in (
        *("epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4"),
        *("rt_sigtimedwait", "rt_sigsuspend", "pause"),
    )
)
_SLEEPS = ("[sleeping", "[blocked", "[woken")
_MAIN_CALLERS = frozenset({"__libc_start_call_main", "__libc_start_main", "__libc_start_main_impl"})
_INTERPRETER = ("python", "libpython")
_WAITING_MODULES = (*_INTERPRETER, "_queue.", "select.", "_socket.", "_multiprocessing.")
"""Prefixes of the files, besides the C library, whose native functions Python's idle loops call to wait."""
_LIBRARIES = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libc.musl", "[vdso]")
_CONDITIONS = frozenset({"pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait"})
_ANY = frozenset({""})
_CONSUMER: tuple[frozenset[str], ...] = (
    frozenset({"threading.py:run"}),
    _ANY,
    frozenset({"queue.py:get"}),
    frozenset({"threading.py:wait"}),
)
"""Functions on the stack of a thread whose first function, with any name, reads from a queue."""
_NOT_FOR_WORK = ("pthread_cond_", "pthread_mutex_", "take_gil", "lll_lock_wait")
"""Prefixes of native functions in which a thread waits for the GIL or a mutex, and not for work."""


def without_idle(profile: Profile) -> Profile:
    """Return the profile without the waits of idle threads, and with a note about what is hidden.

    A profile of another kind of time, or one that has only idle waits, is returned unchanged.
    """
    idle = hidden_waits(profile)
    if not idle.any():
        return profile
    if idle.all():
        note = said("only_idle")
        return replace(profile, summary=replace(profile.summary, notes=(*profile.summary.notes, note)))
    threads = len(np.unique(profile.thread[idle]))
    found = selected(profile, ~idle)
    note = said(
        "idle_hidden",
        threads=f"{threads:,} thread{'s' * (threads != 1)}",
        seconds=f"{int(profile.values[idle, -1].sum()) / 1e9:.1f}",
    )
    return replace(found, summary=replace(found.summary, notes=(*found.summary.notes, note)))


def hidden_waits(profile: Profile) -> Mask:
    """Return which samples (n,) are hidden unless the user asks for them: the idle waits, in MODES."""
    if profile.value_types[-1].type not in MODES:
        return np.zeros(len(profile.stack), np.bool_)
    return idle_waits(profile)


def idle_waits(profile: Profile) -> Mask:
    """Return which samples are waits of idle threads, shape (n,)."""
    leaves = np.unique(profile.stack)
    is_lock = profile.value_types[-1].type == "lock"
    idle = [_is_idle(profile, profile.path(leaf), is_lock) for leaf in leaves.tolist()]
    found: Mask = np.array(idle, np.bool_)[np.searchsorted(leaves, profile.stack)]
    return found


def _is_idle(profile: Profile, path: list[Frame], is_lock: bool) -> bool:
    """Return True if the wait at the end of a stack is a wait of an idle thread for work. Frames inside the wait belong
    to the waker.
    """
    frames: list[Frame] = []
    for frame in path:
        if frame.kind == FrameKind.MARKER and (frame.mark is None or frame.mark.kind is not MarkKind.LOCK):
            return False
        if frame.kind == FrameKind.MARKER and frame.title == "[GIL]":
            return False
        if frame.kind == FrameKind.KERNEL and frame.title.startswith("["):
            return frame.title.startswith(_SLEEPS) and _waits_for_work(profile, frames, frame.title, is_lock)
        if frame.kind in (FrameKind.NATIVE, FrameKind.INLINE, FrameKind.INTERPRETER):
            frames.append(frame)
    return False


def _waits_for_work(profile: Profile, frames: list[Frame], wait: str, is_lock: bool) -> bool:
    last = next((at for at in range(len(frames) - 1, -1, -1) if frames[at].kind == FrameKind.INTERPRETER), -1)
    if last < 0:
        return _is_native_loop(profile, frames, wait, is_lock)
    inner = frames[last + 1 :]
    if not all(_is_library(profile, frame) or _is_from(profile, frame, _WAITING_MODULES) for frame in inner):
        return False
    if any(name.lstrip("_").startswith(_NOT_FOR_WORK) for frame in inner for name in _names(frame)):
        return False
    keys = [_key(frame) if frame.kind == FrameKind.INTERPRETER else "" for frame in frames[: last + 1]]
    root = max((at for at, key in enumerate(keys) if _fits(key, PYTHON_ROOTS)), default=-1)
    for frame in (frame for frame in frames[root + 1 : last] if frame.kind != FrameKind.INTERPRETER):
        if any(name not in START_UP and name != "main" for name in _names(frame)) and not (
            _is_from(profile, frame, _INTERPRETER)
        ):
            return False
    rest = [key for key in keys[root + 1 :] if key and key.rpartition(":")[2] not in STARTS]
    if any(rest and all(_fits(key, loop) for key in rest) for loop in PYTHON):
        return True
    # a thread whose own function waits for its queue holds nothing, so this is no lock
    return is_lock and root >= 0 and len(rest) == len(_CONSUMER) and all(map(_fits, rest, _CONSUMER))


def _is_native_loop(profile: Profile, frames: list[Frame], wait: str, is_lock: bool) -> bool:
    inner = [frame for frame in frames if _is_library(profile, frame)]
    rest: list[str] = []
    caller = ""
    for frame in frames:
        names = _names(frame)
        if not _is_library(profile, frame):
            own = ["main", *names[1:]] if caller in _MAIN_CALLERS else names
            rest += [name for name in own if name not in START_UP]
        caller = names[-1]
    if not rest or not any(name in START_UP for name in _names(frames[0])):
        return False
    if any(all(name == "main" or name in loop for name in rest) and rest[-1] in loop for loop in NATIVE):
        return True
    if rest == ["main"]:
        return wait.endswith(tuple(_EVENT_CALLS))
    # a thread whose own function waits for a condition holds nothing, so this is no lock
    conditions = any(name.lstrip("_") in _CONDITIONS for frame in inner for name in _names(frame))
    return is_lock and len(rest) == 1 and conditions and any(n == "start_thread" for f in inner for n in _names(f))


def _is_library(profile: Profile, frame: Frame) -> bool:
    return _is_from(profile, frame, _LIBRARIES)


def _is_from(profile: Profile, frame: Frame, beginnings: tuple[str, ...]) -> bool:
    """Return True if the name of a frame's file begins with one of these prefixes."""
    return frame.module >= 0 and base_name(profile.modules[frame.module].path).startswith(beginnings)


def _names(frame: Frame) -> list[str]:
    """Return the functions of a native frame, outermost first, without their arguments."""
    names = [line.function or line.system_name for line in reversed(frame.lines)] or [frame.title]
    return [name.partition("(")[0] if not name.startswith("(") else name for name in names]


def _key(frame: Frame) -> str:
    line = frame.lines[0] if frame.lines else None
    return f"{line.file or ''}:{line.function.rpartition('.')[2]}" if line else f":{frame.title}"


def _fits(key: str, names: Iterable[str]) -> bool:
    """Return True if a file's path ends with one of these names, in any folder."""
    return any(not name or key == name or key.endswith("/" + name) for name in names)
