"""A recording in this process, whose parts can be measured."""

from __future__ import annotations

import time

from pyprof.session.session import Session


def run_for(session: Session, seconds: float) -> None:
    """Record for some seconds, and close the collector in all cases."""
    end = time.monotonic() + seconds
    try:
        for batch in session.collector.batches():
            session.recorder.add_batch(batch)
            if time.monotonic() > end:
                session.collector.stop()
    finally:
        session.collector.close()
