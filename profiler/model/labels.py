"""Labels: what a user says of a recording, `env=prod`. They stand on threads, so that several recordings may be one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyprof.errors import UsageError

Labels = tuple[tuple[str, str], ...]
"""(name, value) in order of the names, of which each comes once."""

RESERVED = ("pid", "tid", "thread", "process", "merge")
"""Labels that pprof files have of pyprof anyway."""
MOST = 64
LONGEST = 1000
"""Letters of a name or of a value."""
_PPROF = "pprof::"


def labels_of(given: Mapping[str, str]) -> Labels:
    """Raises UsageError for what is no label."""
    if len(given) > MOST:
        raise UsageError(f"there are {len(given)} labels, {MOST} at most may be given")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"label {name!r}: a label is text", "labels={'env': 'prod'}")
        if not name or not value or max(len(name), len(value)) > LONGEST or not (name + value).isprintable():
            raise UsageError(f"label {name!r}: name and value have 1 to {LONGEST} printable letters each")
        if "=" in name or name in RESERVED or name.startswith(_PPROF):
            raise UsageError(f"label {name!r}: another name, please: pprof files mean something else by it")
    return tuple(sorted(given.items()))


def common(every: Iterable[Labels]) -> Labels:
    """The labels that all have."""
    first, *others = [*every] or [()]
    return tuple(label for label in first if all(label in other for other in others))


def fit(labels: Labels, wanted: Mapping[str, str | Collection[str]]) -> bool:
    """Is each label there that is wanted, with the value, or one of the values?"""
    own = dict(labels)
    return all(own.get(name) in ((value,) if isinstance(value, str) else value) for name, value in wanted.items())


def shown(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels)
