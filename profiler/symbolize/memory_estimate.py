"""An estimate of the memory that an object uses, from samples of long containers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.objfile.images import Image

_SAMPLE = 16
_MAX_VISITED = 1 << 18
"""Maximum number of objects that are visited to estimate memory. A larger structure is measured in part, which still
makes it the largest.
"""
_NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Diagnostics, Image)


def estimate_footprint(root: object) -> int:
    """Return the estimated size in bytes of an object and all objects that it refers to.

    Classes, functions, methods, Diagnostics and Images are shared and do not count. The elements of a container of more
    than 16 count by the mean of 16 of them, evenly spread.
    """
    seen: set[int] = set()
    total = 0.0
    waiting: list[tuple[object, float]] = [(root, 1.0)]
    while waiting and len(seen) < _MAX_VISITED:
        value, weight = waiting.pop()
        if id(value) in seen or value is None or isinstance(value, _NOT_ITS_OWN):
            continue
        seen.add(id(value))
        total += weight * _shallow(value)
        for part, count in _parts(value):
            waiting.extend((each, weight * count) for each in part)
    return round(total)


def _shallow(value: object) -> int:
    if isinstance(value, np.ndarray):
        return sys.getsizeof(value) if value.base is None else 128
    return sys.getsizeof(value, 64)


def _parts(value: object) -> Iterator[tuple[Iterable[object], float]]:
    """Yield (elements to visit, number of elements that each of them stands for) of an object."""
    if isinstance(value, str | bytes | bytearray | int | float):
        return
    if isinstance(value, memoryview):
        yield (value.obj,), 1.0
    elif isinstance(value, np.ndarray):
        yield (value.base,), 1.0
    elif isinstance(value, dict):
        yield _spread(list(value.keys()))
        yield _spread(list(value.values()))
    elif isinstance(value, list | tuple):
        yield _spread(value)
    elif isinstance(value, set | frozenset):
        yield _spread(list(value))
    else:
        yield _attributes(value), 1.0


def _spread(values: Sequence[object]) -> tuple[Iterable[object], float]:
    if len(values) <= _SAMPLE:
        return values, 1.0
    step = len(values) // _SAMPLE
    return islice(values, 0, step * _SAMPLE, step), len(values) / _SAMPLE


def _attributes(value: object) -> list[object]:
    found: list[object] = []
    if (own := getattr(value, "__dict__", None)) is not None:
        found.append(own)
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        found += [getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    return found
