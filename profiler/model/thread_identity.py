"""Keys of threads and processes, and the labels that a user gives to them, `env=prod`.

The kernel reuses a tid after its thread has ended. A key contains the start time, so two threads with the same number
have different keys. Labels belong to threads, so that recordings can be merged. Programs label their work, too: a
thread whose samples have several sets of labels is in a profile once for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pyprof.errors import UsageError


class ProcessKey(NamedTuple):
    """Key of a process. `started` is the start time of the process's first thread (see ThreadKey)."""

    pid: int
    started: int


class ThreadKey(NamedTuple):
    """The key of a thread: tid and start time.

    `started` is the start time in nanoseconds of CLOCK_MONOTONIC, as exact as its source, or the time at which the
    thread was first seen. It is 0 if unknown (a core file, a dump, a GDB stub).
    """

    pid: int
    tid: int
    started: int


Labels = tuple[tuple[str, str], ...]
"""The labels of a sample: pairs (name, value), sorted by name. Each name occurs once."""

RESERVED = ("pid", "tid", "thread", "process", "merge")
"""Names of labels that pyprof itself writes to pprof files."""
MOST = 64
LONGEST = 1000
"""Maximum number of characters of a label's name or value."""
_PPROF = "pprof::"


def labels_of(labels: Mapping[str, str]) -> Labels:
    """Check and sort the labels that a user gave to a recording.

    Raises:
        UsageError: A label is invalid.
    """
    if len(labels) > MOST:
        raise UsageError(f"there are {len(labels)} labels, {MOST} at most may be given")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"label {name!r}: name and value must be text", "labels={'env': 'prod'}")
        if not name or not value or max(len(name), len(value)) > LONGEST or not (name + value).isprintable():
            raise UsageError(f"label {name!r}: name and value have 1 to {LONGEST} printable letters each")
        if "=" in name or name in RESERVED or name.startswith(_PPROF):
            raise UsageError(f"label {name!r}: the name has another meaning in pprof files")
    return tuple(sorted(labels.items()))


def read_program_labels(pairs: Iterable[tuple[bytes, bytes]]) -> Labels:
    """Return the labels that a program gave to its work, in a form that is valid in all outputs.

    Names that pyprof itself writes get the prefix "label_". Control characters and "=" in names become "_". Labels
    without a name or value are left out.

    Args:
        pairs: Names and values.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        key = _printable(name).replace("=", "_")
        if key in RESERVED or key.startswith(_PPROF):
            key = f"label_{key}"
        if key and (content := _printable(value)):
            found[key[:LONGEST]] = content
    return tuple(sorted(found.items()))


def _printable(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "_" for letter in text)[:LONGEST]


def join_labels(outer: Labels, inner: Labels) -> Labels:
    """Return the labels of two sets. If both have a label of one name, the value in `outer` is used."""
    return tuple(sorted({**dict(inner), **dict(outer)}.items())) if inner else outer


def common(every: Iterable[Labels]) -> Labels:
    """Return the labels that all of several label sets contain."""
    first, *others = [*every] or [()]
    return tuple(label for label in first if all(label in other for other in others))


def fit(labels: Labels, wanted: Mapping[str, str | Collection[str]]) -> bool:
    """Return True if a thread's labels have each wanted name with one of its wanted values."""
    own = dict(labels)
    return all(own.get(name) in ((value,) if isinstance(value, str) else value) for name, value in wanted.items())


def shown(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels)
