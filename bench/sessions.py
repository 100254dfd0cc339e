"""A recording in our own process, where its parts can be measured."""

from __future__ import annotations

import time

from pyprof.session.session import Session


def run_for(session: Session, seconds: float) -> None:
    """Record, and close the collector whatever happens."""
    end = time.monotonic() + seconds
    try:
        for batch in session.collector.batches():
            session.recorder.add(batch)
            if time.monotonic() > end:
                session.collector.stop()
    finally:
        session.collector.close()
