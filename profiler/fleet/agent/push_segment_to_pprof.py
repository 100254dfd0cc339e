"""Conversion of an agent's segment for receivers of pprof files: a profile for each set of labels that the rules gave.

Names of processes and threads do not become labels, because each value would be a separate series. Large profiles are
split into parts. Parts that the receiver has accepted are not sent again while the agent runs.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from pyprof.errors import FormatError, PyprofError
from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.exporters.protobuf_encoding import encode_data
from pyprof.fleet.wire.push_response_verdicts import NotSent, RefusedForGood
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers import pprof as pprof_reader
from pyprof.importers.protobuf import parse_fields
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.profile import Profile, ThreadInfo
from pyprof.model.thread_identity import Labels
from pyprof.model.untrusted_text import encode_text

MAX_SAMPLES = 16_000
MAX_BYTES = 2 << 20
"""Maximum size in bytes of one inflated profile: Pyroscope accepts 4 MiB a profile, and 2 MiB at a time."""
MAX_LABELS, MAX_LABEL = 30, 2048
PROFILE_NAMES = {"cpu": "process_cpu", "wall": "wall", "offcpu": "off_cpu"}
"""Name (__name__) of a profile at the receiver, by mode."""
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_PLAIN = ExportOptions(thread_labels=False)
Some = TypeVar("Some")


@dataclass(frozen=True, slots=True)
class Part:
    """A profile that is sent to a receiver of pprof. It has the samples of a segment that share one set of labels, or a
    part of these samples.

    Attributes:
        labels: Labels of the series, including __name__ and service_name.
        pprof: The gzipped profile.
    """

    labels: Labels
    pprof: bytes
    profile: Profile

    @property
    def start_ns(self) -> int:
        return self.profile.start_ns

    @property
    def end_ns(self) -> int:
        return self.profile.start_ns + self.profile.duration_ns


def read(data: bytes, title: str) -> Profile:
    """Read a segment of the spool as a Profile.

    Raises:
        RefusedForGood: The segment is broken.
    """
    try:
        return pprof_reader.read_pprof(data, title)
    except (PyprofError, OverflowError) as error:
        raise RefusedForGood("unreadable", str(error)) from None


def parts(data: bytes, service: str) -> Iterator[Part]:
    """Yield the profiles into which a segment is divided for a receiver of pprof. There is none if nothing was sampled.

    Raises:
        RefusedForGood: The segment is broken or too large.
    """
    profile = read(data, service)
    by_labels: dict[Labels, list[int]] = {}
    for at, thread in enumerate(profile.threads):
        by_labels.setdefault(thread.labels, []).append(at)
    for labels, threads in sorted(by_labels.items()):
        of_series = np.zeros(len(profile.threads), np.bool_)
        of_series[threads] = True
        found = selected(profile, of_series[profile.thread])
        nobody = np.zeros(len(found.thread), np.int32)
        found = replace(found, threads=(ThreadInfo(0, 0, "", "", labels=labels),), thread=nobody)
        named = series_labels(labels, service, profile.value_types[-1].type)
        for whole in cut(found):
            yield Part(named, packed(whole), whole)


def packed(profile: Profile) -> bytes:
    out = io.BytesIO()
    pprof.write(profile, out, _PLAIN)
    return out.getvalue()


def cut(profile: Profile, max_bytes: int = MAX_BYTES) -> Iterator[Profile]:
    """Split a profile by stacks into parts that are small enough for a receiver of pprof, by their numbers of samples
    and bytes.

    Raises:
        RefusedForGood: One stack is too large.
    """
    stacks = np.unique(profile.stack)
    if not profile.values.any():  # a service without samples: pyprof's server alone wants to know of it
        return
    size = inflated_size(packed(profile)) if len(stacks) <= MAX_SAMPLES else 0
    if size and size <= max_bytes:
        yield profile
        return
    if len(stacks) < 2:
        raise RefusedForGood("too_large", f"one stack of {size} bytes")
    first = profile.stack < stacks[len(stacks) // 2]
    for wanted in (first, ~first):
        yield from cut(selected(profile, wanted), max_bytes)


def inflated_size(data: bytes) -> int:
    return len(zlib.decompress(data, wbits=31))


def series_labels(labels: Labels, service: str, mode: str) -> Labels:
    """Return the labels of a series under names that Prometheus accepts. Labels beyond the maximum number are left out,
    in the order of their names.
    """
    found = {"__name__": PROFILE_NAMES.get(mode, mode), "service_name": service}
    for name, value in labels:
        plain = _NO_LABEL.sub("_", name)
        plain = plain if not plain[:1].isdigit() else f"_{plain}"
        if name != "service" and len(found) < MAX_LABELS:
            found.setdefault(plain, value.encode("utf-8", "replace")[:MAX_LABEL].decode("utf-8", "ignore"))
    return tuple(sorted(found.items()))


class SegmentProgress:
    def __init__(self) -> None:
        self._of: SegmentName | None = None
        self._taken = 0

    def send(self, name: SegmentName, parts: Iterable[Some], post: Callable[[SegmentName, int, Some], None]) -> None:
        """Send those parts of a segment that the receiver has not accepted in an earlier attempt. The caller passes the
        same parts in each attempt. Exceptions of the function `post` reach the caller.
        """
        if self._of != name:
            self._of, self._taken = name, 0
        for at, part in enumerate(parts):
            if at >= self._taken:
                post(name, at, part)
                self._taken = at + 1


def encode_labels(labels: Labels) -> bytes:
    """Encode labels as repeated messages (name, value), field 1, as Pyroscope and Parca define them."""
    return b"".join(
        encode_data(1, encode_data(1, encode_text(name)) + encode_data(2, encode_text(value))) for name, value in labels
    )


def check_empty(body: bytes) -> None:
    """Check that a receiver's response body is a protobuf message. pyprof reads no field of such a response.

    Raises:
        NotSent: The body is not a protobuf message.
    """
    try:
        parse_fields(body)
    except FormatError:
        raise NotSent("nonsense", "the response is not a protobuf message") from None
