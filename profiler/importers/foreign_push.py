"""Profiles as other profilers push them: each has a service, labels and one value type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyprof.errors import FormatError, UsageError
from pyprof.model.labels import RESERVED, Labels, labels_of
from pyprof.model.profile import Profile
from pyprof.records import dataclass, replace

SERVICE = ("service_name", "service.name", "service", "job", "app", "comm")
"""Names of labels that name the service of a pushed profile; the first one that is present counts."""
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PushedProfile:
    """A profile that another profiler has pushed; its threads have the labels of the push.

    The last value is the primary one. The first value is the number of samples, if the sender states it.
    """

    service: str
    profile: Profile


def split_labels(pairs: Iterable[tuple[str, str]]) -> tuple[str, Labels]:
    """Return the service and the labels of a pushed profile, without the sender's internal labels (`__name__`) and
    those of threads.

    Raises:
        FormatError: A label is not valid.
    """
    given = dict(pairs)
    service = next((given[name] for name in SERVICE if given.get(name)), UNKNOWN)
    kept = {
        name: value
        for name, value in given.items()
        if value and name not in RESERVED and name not in SERVICE[:3] and not name.startswith("__")
    }
    try:
        labels_of({"service": service})
        return service, labels_of(kept)
    except UsageError as error:
        raise FormatError("labels", 0, error.message) from None


def add_labels(profile: Profile, labels: Labels) -> Profile:
    """Add labels to all threads of a profile; they replace the threads' labels of the same names.

    Raises:
        FormatError: A label is not valid.
    """
    try:
        threads = [replace(thread, labels=labels_of(dict(thread.labels) | dict(labels))) for thread in profile.threads]
    except UsageError as error:
        raise FormatError("labels", 0, error.message) from None
    return replace(profile, threads=tuple(threads))


def split_by_value_type(profile: Profile) -> Iterator[Profile]:
    """Yield one profile for each value type that is not a count, with the count before it if there is one.

    If there are only counts, each becomes a profile.
    """
    kinds = profile.value_types
    amounts = [at for at, kind in enumerate(kinds) if kind.unit != "count"]
    for at in amounts or range(len(kinds)):
        count = next((before for before in reversed(range(at)) if kinds[before].unit == "count"), None)
        columns = [count, at] if count is not None and amounts else [at]
        yield replace(
            profile, value_types=tuple(kinds[column] for column in columns), values=profile.values[:, columns]
        )
