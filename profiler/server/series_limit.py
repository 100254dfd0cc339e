"""How many sets of labels a tenant may send in a day: each is a line of the page, and rows that nobody can add up."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pyprof.server.access import Refused
from pyprof.server.engine import StoreError
from pyprof.server.store import Store

MOST_OF_SEGMENT = 1000
_MOST_DAYS = 64
"""Of tenants, that are remembered; the oldest is asked of the database again."""


class SeriesLimit:
    """For several threads."""

    def __init__(self, most: int, store: Store) -> None:
        self._most, self._store = most, store
        self._known: dict[tuple[str, str], set[int]] = {}
        self._lock = threading.Lock()

    def take(self, tenant: str, day: str, series: Iterable[int]) -> None:
        """series: numbers of a segment's sets of labels. Raises Refused; then none of them counts."""
        wanted = set(series)
        if len(wanted) > MOST_OF_SEGMENT:
            text = f"the segment has {len(wanted):,} sets of labels, {MOST_OF_SEGMENT:,} at most may be taken"
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
        """Those that the database has, when they are first asked for."""
        found = self._known.get((tenant, day))
        if found is None:
            if len(self._known) >= _MOST_DAYS:
                self._known.pop(next(iter(self._known)))
            try:
                found = self._store.series(tenant, day, self._most)
            except StoreError:
                found = set()  # windows are taken also while the database is away
            self._known[tenant, day] = found
        return found
