"""Simulated recordings of programs whose functions have known shares of time. The seed determines the samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo
from pyprof.model.summary import Summary
from pyprof.model.unwind_result import Trust
from tests.exporters.profiles import COUNT_AND_CPU

RATE = 999
PERIOD_NS = 1_001_001
START_NS = 1_700_000_000_000_000_000
SHARES = {"slowed": 0.2, "big": 0.3, "middle": 0.1} | {f"small{n}": 0.4 / 2**n for n in range(1, 12)}
"""Share of time of each function of the program. The last ones have only a few samples."""
BURSTS = {f"burst{n}": 0.002 for n in range(20)}
"""Share of time of functions that run once for a moment."""


def recording(
    seed: int,
    seconds: float = 60,
    shares: Mapping[str, float] = SHARES,
    bursts: Mapping[str, float] = BURSTS,
    file: str = "/build/server",
) -> Profile:
    """Return a recording in which `main` calls all functions. Each seed has its own build ID and addresses."""
    chance = np.random.default_rng(seed)
    names = [*shares, *bursts]
    expected = np.array([*shares.values(), *bursts.values()]) * seconds * RATE
    function = np.repeat(np.arange(len(names)), chance.poisson(expected))
    at = chance.uniform(0, seconds, len(function))
    moment = chance.uniform(0, 0.9 * seconds, len(names))
    bursty = function >= len(shares)
    at[bursty] = moment[function[bursty]] + chance.uniform(0, 0.05 * seconds, int(bursty.sum()))
    return profile(names, function, at, seconds, ModuleInfo(file, f"{seed:040x}", seed << 20, 1 << 60, 0, True, True))


def web_server(seed: int, seconds: float, shares: Mapping[str, float] = SHARES) -> Profile:
    """The same program in Python: for each function a view, which calls the standard library, which calls C."""
    native = recording(seed, seconds, shares, {}, "/usr/lib/libfast.so")
    application, library = "/srv/app.py", "/usr/lib/python3.11/json.py"
    frames = [_python("<module>", application), _python("dispatch", "/venv/lib/python3.11/site-packages/web.py")]
    parent = [-1, 0, 1]
    for called in native.frames[1:]:
        frames += [_python(f"view_{called.title}", application), _python(f"encode_{called.title}", library), called]
        parent += [2, len(parent), len(parent) + 1]
    return replace(
        native,
        frames=tuple(frames),
        parent=np.array(parent, np.int32),
        frame=np.arange(-1, len(frames), dtype=np.int32),
        stack=(3 * native.stack - 1).astype(np.int32),
    )


def _python(name: str, file: str) -> Frame:
    return Frame(FrameKind.INTERPRETER, 0, 0, 0, -1, (Line(name, name, 0, file),), Trust.FP, name)


def profile(
    names: list[str], function: npt.NDArray[np.int64], at: npt.NDArray[np.float64], seconds: float, module: ModuleInfo
) -> Profile:
    """Return a profile with samples of these functions.

    Args:
        names: Names of the functions.
        function: Index of the function of each sample.
        at: Time of each sample in seconds.
        seconds: Duration of the recording.
        module: The module of all functions.
    """
    order = np.argsort(at, kind="stable")
    frames = tuple(
        Frame(FrameKind.NATIVE, module.start + n, module.start + n, n, 0, (Line(name, name),), Trust.FP, name)
        for n, name in enumerate(["main", *names])
    )
    count = len(names)
    return Profile(
        value_types=COUNT_AND_CPU,
        period_ns=PERIOD_NS,
        start_ns=START_NS,
        duration_ns=int(seconds * 1e9),
        title="server (pid 7)",
        frames=frames,
        parent=np.array([-1, 0, *[1] * count], np.int32),
        frame=np.array([-1, *range(count + 1)], np.int32),
        modules=(module,),
        threads=(ThreadInfo(7, 7, "main", "server"),),
        time_ns=(START_NS + at[order] * 1e9).astype(np.int64),
        stack=(function[order] + 2).astype(np.int32),
        thread=np.zeros(len(order), np.int32),
        values=np.tile(np.array([1, PERIOD_NS], np.int64), (len(order), 1)),
        summary=Summary(),
    )
