"""A profile as a table with one row for each sample, for any library of data frames."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from pyprof.errors import MissingLibrary, UsageError
from pyprof.model.analysis.function_costs import functions_of
from pyprof.model.profile import DataFrame, Profile

SEPARATOR = ";"
LIBRARIES = ("pandas", "polars")
"""Supported data frame libraries, in the order of preference."""


def data_frame(profile: Profile, library: str | None) -> DataFrame:
    """Return a profile as a data frame.

    Args:
        profile: The profile.
        library: One of LIBRARIES, None for the first that is installed.

    Raises:
        MissingLibrary: The library is not installed.
        UsageError: The library is not supported.
    """
    return frame_of(columns(profile), library)


def frame_of(columns: Mapping[str, object], library: str | None) -> DataFrame:
    """Make a data frame from columns.

    Args:
        columns: Values of each column, by its name.
        library: One of LIBRARIES, None for the first that is installed.

    Raises:
        MissingLibrary: The library is not installed.
        UsageError: The library is not supported.
    """
    if library not in (*LIBRARIES, None):
        raise UsageError(f"the data frame library {library!r} is not installed", f"one of {', '.join(LIBRARIES)}")
    for name in (library,) if library else LIBRARIES:
        if find_spec(name) is not None:
            return import_module(name).DataFrame(columns)
    wanted = library or " or ".join(LIBRARIES)
    raise MissingLibrary(
        f"a data frame needs {wanted}, which is not installed", f"pip install {library or LIBRARIES[0]}"
    )


def columns(profile: Profile) -> dict[str, npt.NDArray[np.generic]]:
    """Return the columns of a profile by name, one row for each sample.

    time is UTC, datetime64[ns]; pid, tid, process and thread; function and module where the sample was taken; stack has
    the functions from the outermost on, joined by ";" (";" in a name becomes ":"); then one column for each value type,
    such as samples and cpu_ns.
    """
    leaves, at = np.unique(profile.stack, return_inverse=True)
    rows = [_names(profile, leaf) for leaf in leaves.tolist()]
    threads = profile.threads
    found: dict[str, npt.NDArray[np.generic]] = {
        "time": profile.time_ns.astype("datetime64[ns]"),
        "pid": np.array([thread.pid for thread in threads], np.int64)[profile.thread],
        "tid": np.array([thread.tid for thread in threads], np.int64)[profile.thread],
        "process": np.array([thread.process for thread in threads], object)[profile.thread],
        "thread": np.array([thread.name for thread in threads], object)[profile.thread],
        "function": np.array([row[0] for row in rows], object)[at],
        "module": np.array([row[1] for row in rows], object)[at],
        "stack": np.array([row[2] for row in rows], object)[at],
    }
    for column, kind in enumerate(profile.value_types):
        name = kind.type if kind.unit == "count" else f"{kind.type}_{'ns' if kind.unit == 'nanoseconds' else kind.unit}"
        found[name] = profile.values[:, column]
    return found


def _names(profile: Profile, leaf: int) -> tuple[str, str, str]:
    """Return (innermost function, its module, all functions joined by ";") of a stack.

    Args:
        profile: The profile.
        leaf: Node of the stack's innermost frame.
    """
    names = []
    function = module = ""
    for frame in profile.path(leaf):
        found = functions_of(profile, frame)
        names += [name.name for name, _ in found] or [frame.title]
        if found:
            function, module = found[-1][0].name, found[-1][1]
    return function, module, SEPARATOR.join(name.replace(SEPARATOR, ":") for name in names)
