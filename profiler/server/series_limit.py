"""Limit for the sets of labels that a tenant may send in a day: each is a line on the page and cannot be added to
others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pyprof.server.authorization import Refused
from pyprof.server.database import Store
from pyprof.server.sql_engine import StoreError

MAX_OF_SEGMENT = 1000
_MAX_DAYS = 64
"""Maximum number of (tenant, day) whose label sets are cached; the oldest one is read from the database again."""


class SeriesLimit:
    """The label sets (series) of each tenant and day, for several threads."""

    def __init__(self, most: int, store: Store) -> None:
        self._most, self._store = most, store
        self._known: dict[tuple[str, str], set[int]] = {}
        self._lock = threading.Lock()

    def count_series(self, tenant: str, day: str, series: Iterable[int]) -> None:
        """Count the label sets of a segment against the tenant's daily limit.

        Raises:
            Refused: There are too many; then none of them counts.
        """
        wanted = set(series)
        if len(wanted) > MAX_OF_SEGMENT:
            text = f"the segment has {len(wanted):,} sets of labels, {MAX_OF_SEGMENT:,} at most may be taken"
            raise Refused("too_many_series", text)
        with self._lock:
            known = self._of(tenant, day)
            if wanted <= known:
                return
            whole = len(known) + len(wanted - known)
            if whole > self._most:
                text = f"it would be {whole:,} sets of labels on {day}, {self._most:,} at most may be taken"
                raise Refused("too_many_series", text)
            known |= wanted

    def _of(self, tenant: str, day: str) -> set[int]:
        """Return the label sets (series) of a tenant on a day, from the database on the first access."""
        found = self._known.get((tenant, day))
        if found is None:
            if len(self._known) >= _MAX_DAYS:
                self._known.pop(next(iter(self._known)))
            try:
                found = self._store.series(tenant, day, self._most)
            except StoreError:
                found = set()  # windows are accepted even if the database is away
            self._known[tenant, day] = found
        return found
