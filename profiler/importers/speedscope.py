"""Reader of speedscope's JSON (npm speedscope, dist/release/file-format-schema.json), sampled and evented profiles.

Each profile in the file becomes a thread. Samples follow one another: each begins when the weight of the previous one
has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from pyprof.errors import FormatError
from pyprof.importers.profile_builder import About, Builder, function_frame
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import FrameKind, Profile, ThreadInfo, ValueType

_NS = {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
_MAX_NS = 2**62


def is_speedscope(data: bytes) -> bool:
    return data[:64].lstrip()[:1] == b"{"


def read_speedscope(data: bytes, title: str) -> Profile:
    """Read a speedscope file as a Profile.

    Raises:
        FormatError: The file is broken.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError("json", error.pos, error.msg) from None
    try:
        return _read(document, title)
    except FormatError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError("speedscope", 0, f"something is missing or of another type: {error}") from None


def _read(document: Any, title: str) -> Profile:
    builder = Builder()
    frames = [builder.add_frame(_frame(entry)) for entry in document["shared"]["frames"]]
    profiles = document["profiles"]
    units = {profile["unit"] for profile in profiles}
    if len(units) != 1:
        raise FormatError("speedscope", 0, "there is no profile" if not profiles else "the profiles have several units")
    (unit,) = units
    longest = 0
    for number, profile in enumerate(profiles, 1):
        thread = ThreadInfo(0, number, str(profile["name"]), "")
        at = 0
        stacks = _evented if profile["type"] == "evented" else _sampled
        for node, weight in stacks(profile, builder, frames):
            weight = round(weight * _NS.get(unit, 1))
            if not 0 <= weight < _MAX_NS or at + weight >= _MAX_NS:
                raise FormatError("speedscope", number, "a weight below 0, or too large")
            if weight:
                builder.add_sample(node, (1, weight), thread, at if unit in _NS else 0)
            at += weight
        longest = max(longest, at)
    known = unit in _NS
    primary = ValueType("time", "nanoseconds") if known else ValueType("bytes" if unit == "bytes" else "weight", unit)
    kinds = (ValueType("samples", "count"), primary)
    name = document.get("name") or title
    return builder.build(
        About(str(name), kinds, (make_note("read_from_speedscope"),), 0, longest if known else 0, evidence=False)
    )


def _frame(entry: Any) -> Any:
    file, line = entry.get("file"), entry.get("line")
    return function_frame(
        str(entry["name"]),
        str(file) if file else None,
        line if isinstance(line, int) and 0 < line < 1 << 31 else 0,
        FrameKind.NATIVE,
    )


def _known(frames: Sequence[int], index: int) -> int:
    if not isinstance(index, int) or not 0 <= index < len(frames):
        raise FormatError("speedscope", 0, f"a frame that does not exist: {index}")
    return frames[index]


def _sampled(profile: Any, builder: Builder, frames: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield (node of a stack, weight) of each sample of a speedscope profile of type "sampled"."""
    samples, weights = profile["samples"], profile["weights"]
    if len(samples) != len(weights):
        raise FormatError("speedscope", len(weights), "as many weights as samples are wanted")
    for stack, weight in zip(samples, weights, strict=True):
        yield builder.add_stack(_known(frames, index) for index in stack), weight


def _evented(profile: Any, builder: Builder, frames: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield (node of the current stack, length of time) between each two events of a speedscope profile of type
    "evented".
    """
    inside: list[int] = []
    nodes = [0]
    last = profile["startValue"]
    for event in profile["events"]:
        frame, at = _known(frames, event["frame"]), event["at"]
        if at < last:
            raise FormatError("speedscope", 0, "the events are not in order")
        yield nodes[-1], at - last
        last = at
        if event["type"] == "O":
            inside.append(frame)
            nodes.append(builder.add_stack((frame,), nodes[-1]))
        elif inside and inside.pop() == frame:
            nodes.pop()
        else:
            raise FormatError("speedscope", 0, "a function is closed that is not the innermost")
    if inside:
        raise FormatError("speedscope", 0, "a function is not closed")
