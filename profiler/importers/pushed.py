"""Profiles as other profilers push them: a service, its labels, one kind of value each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyprof.errors import FormatError, UsageError
from pyprof.model.labels import RESERVED, Labels, labels_of
from pyprof.model.profile import Profile
from pyprof.records import dataclass, replace

SERVICE = ("service_name", "service.name", "service", "job", "app", "comm")
"""Labels that name the service: the first that is there."""
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PushedProfile:
    """profile: its threads have the labels of the push. Its last value is the one that counts, the first how many
    samples that were, where the sender says so.
    """

    service: str
    profile: Profile


def named(pairs: Iterable[tuple[str, str]]) -> tuple[str, Labels]:
    """The service and the labels, without those that are the sender's own (`__name__`) or a thread's. Raises
    FormatError.
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


def labelled(profile: Profile, labels: Labels) -> Profile:
    """With these labels beside the threads' own, of which those of the same name go. Raises FormatError."""
    try:
        threads = [replace(thread, labels=labels_of(dict(thread.labels) | dict(labels))) for thread in profile.threads]
    except UsageError as error:
        raise FormatError("labels", 0, error.message) from None
    return replace(profile, threads=tuple(threads))


def by_kind(profile: Profile) -> Iterator[Profile]:
    """One for each value that is no count: with the count before it, if there is one. Of counts alone, one for each."""
    kinds = profile.value_types
    amounts = [at for at, kind in enumerate(kinds) if kind.unit != "count"]
    for at in amounts or range(len(kinds)):
        count = next((before for before in reversed(range(at)) if kinds[before].unit == "count"), None)
        columns = [count, at] if count is not None and amounts else [at]
        yield replace(
            profile, value_types=tuple(kinds[column] for column in columns), values=profile.values[:, columns]
        )
