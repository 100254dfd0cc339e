"""`pyprof agent resend`: send segments of the spool to sinks again, after a receiver has lost them."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Iterator, Sequence

from pyprof.agent import spool_query
from pyprof.agent.config import AgentConfig
from pyprof.agent.push.responses import NotSent, RefusedForGood, SegmentSink, cause_and_remedy
from pyprof.agent.push.sink_types import made
from pyprof.agent.segment_names import SegmentName
from pyprof.agent.time_parsing import TimeSpan, moment
from pyprof.cli.number_format import many
from pyprof.errors import PyprofError, UsageError

_BY_NAME = ("pyprof", "folder", "bucket")
"""Types of sinks that recognise a segment by its name, so that it counts once however often it is sent."""
_TRIES = 60
"""Number of attempts to send a segment to a receiver that asks to wait."""


def resend(arguments: argparse.Namespace, config: AgentConfig, root: str) -> Iterator[str]:
    """Send the segments since --since to all sinks that recognise them, and yield a line for each sink.

    Raises:
        PyprofError: A sink does not take a segment, or the spool cannot be read.
        UsageError: No sink is configured that recognises segments.
    """
    targets = [target for target in config.pushes if target.kind in _BY_NAME]
    if not targets:
        raise UsageError(f"no sink of the types {', '.join(_BY_NAME)} is configured", "--config FILE with a [[push]]")
    since_ns = moment(arguments.since, datetime.datetime.now())
    # windows from while the clock was ahead end in the future
    names = spool_query.segments(root, TimeSpan(since_ns, sys.maxsize))
    for target in targets:
        refused = _send_all(target.name, made(target), root, names)
        more = f", {refused:,} refused" if refused else ""
        yield f"{target.name}: has {many(len(names) - refused, 'segment')} since {arguments.since}{more}"


def _send_all(sink_name: str, sink: SegmentSink, root: str, names: Sequence[SegmentName]) -> int:
    """Send segments to a sink, and return how many it refused for good.

    Raises:
        PyprofError: The sink does not take a segment now.
    """
    refused = 0
    for at, name in enumerate(names):
        try:
            with open(f"{root}/{name.path}", "rb") as file:
                _send(sink, name, file.read())
        except FileNotFoundError:  # the spool has dropped it meanwhile
            continue
        except RefusedForGood:
            refused += 1
        except NotSent as error:
            cause, remedy = cause_and_remedy(error.word, error.stated)
            raise PyprofError(
                f"{sink_name} took {at:,} of {many(len(names), 'segment')}: {cause}: {error}",
                f"{remedy}; then the same command again",
            ) from None
        except OSError as error:
            raise PyprofError(f"{sink_name} took {at:,} of {many(len(names), 'segment')}: {error.strerror}") from None
    return refused


def _send(sink: SegmentSink, name: SegmentName, data: bytes) -> None:
    """Send a segment to a sink, and wait as often as its receiver asks for it.

    Raises:
        NotSent: The receiver does not take it now.
        RefusedForGood: The receiver never takes it.
        OSError: Writing failed.
    """
    for left in reversed(range(_TRIES)):
        try:
            sink.send(name, data)
            return
        except NotSent as error:
            if error.word != "limited" or not left:
                raise
            time.sleep(max(error.after_s, 1.0))
