"""A recording by pyprof within this process, whose parts can be measured."""

from __future__ import annotations

import time

from pyprof.collectors.base import Collector
from pyprof.session.session import Session


def run_for(session: Session, collector: Collector, seconds: float) -> None:
    """Record for some seconds, and close the collector whatever happens."""
    end = time.monotonic() + seconds
    session.run(collector, lambda: collector.stop() if time.monotonic() > end else None)
    if session.failure is not None:
        raise session.failure
