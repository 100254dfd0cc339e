"""The extra fields that `exporters/pprof.py` writes into a pprof file. Unknown entries of this untrusted
input are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

import orjson

from pyprof.diagnostics import Problem
from pyprof.errors import FormatError
from pyprof.importers.protobuf import parse_fields
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import FrameKind
from pyprof.model.summary import ModuleSummary, Stops, Summary
from pyprof.model.walk import StackEnd, Trust
from pyprof.recording.older_names import counter_key, problem_reason
from pyprof.records import dataclass

FIELD, STACKS = 1000, 1001
MAX_LACKS = 100
_MAX_NUMBER = 1 << 50
_MAX_COUNTERS = 1000
_LONGEST = 1 << 20
Member = TypeVar("Member", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class FrameEvidence:
    kind: FrameKind
    trust: Trust = Trust.CONTEXT
    mark: Mark | None = None


def read_frame_evidence(row: bytes, kind: FrameKind, title: str) -> FrameEvidence:
    """Read how a frame was found, from the extra fields of a pprof location.

    Args:
        kind: Kind of the frame if the evidence does not state it.

    Raises:
        FormatError: The message is broken.
    """
    texts: dict[int, str] = {}
    counts: dict[int, int] = {}
    for key, value in parse_fields(row):
        if isinstance(value, bytes):
            texts[key] = value.decode("ascii", "replace")
        else:
            counts[key] = min(value, _MAX_NUMBER)
    found = _member(FrameKind, texts.get(2, ""), kind)
    trust = _member(Trust, texts.get(1, ""), Trust.CONTEXT)
    if 3 not in texts or found is not FrameKind.MARKER:
        return FrameEvidence(found, trust)
    mark_kind = next((each for each in MarkKind if each.name.lower() == texts[3]), None)
    if mark_kind is None:
        return FrameEvidence(found, trust)
    end = _member(StackEnd, texts.get(4, ""), StackEnd.ROOT)
    enough, unplaced, without_run, lacking = (counts.get(key, 0) for key in (5, 6, 7, 8))
    mark = Mark(mark_kind, end, enough, unplaced, without_run, lacking)
    return FrameEvidence(found, trust, mark.named_by(title))


def _member(kind: type[Member], name: str, otherwise: Member) -> Member:
    return next((member for member in kind if member.name.lower() == name), otherwise)


def read_summary(text: bytes) -> Summary:
    """Read the summary of a recording from the extra fields of a pprof file.

    Raises:
        FormatError: The text is not JSON.
    """
    try:
        found = orjson.loads(text[:_LONGEST])
    except orjson.JSONDecodeError as error:
        raise FormatError("pprof", error.pos, "what the recording did is no JSON") from None
    whole = _part(found)
    stops, spent = _part(whole.get("stops")), _part(whole.get("processor"))
    found = [(name, count) for name, count in _part(whole.get("errors")).items() if isinstance(count, int)]
    errors: Counter[str] = Counter()
    for name, count in found[:_MAX_COUNTERS]:
        errors[counter_key(name)] += min(max(count, 0), _MAX_NUMBER)
    return Summary(
        rate_wanted=_amount(whole, "rate_wanted"),
        rate_reached=_amount(whole, "rate_reached"),
        skipped=int(_amount(whole, "skipped")),
        errors=dict(errors),
        stops=Stops(
            int(_amount(stops, "count")), *(_amount(stops, f) for f in ("p50_us", "p99_us", "max_us", "share"))
        ),
        unchanged=int(_amount(_part(whole.get("not_stopped")), "unchanged")),
        blocked=int(_amount(_part(whole.get("not_stopped")), "blocked")),
        processor_s=_amount(spent, "spent_s"),
        not_sampled_s=_amount(spent, "not_sampled_s"),
        lost_s=_amount(spent, "lost_s"),
        kernel_s=_amount(spent, "kernel_s"),
        late_s=_amount(spent, "late_s"),
        modules=_modules(whole.get("lacks")),
    )


def _modules(found: object) -> tuple[ModuleSummary, ...]:
    """Return the modules of a recording's summary with the problems that the file states for them."""
    problems: dict[tuple[str, str], list[Problem]] = {}
    for row in found[:MAX_LACKS] if isinstance(found, list) else ():
        if isinstance(row, list) and len(row) in (4, 5) and all(isinstance(text, str) for text in row):
            path, build_id, text, remedy, *reason = row
            problem = Problem(text, remedy, *(reason or [problem_reason(text)]))
            problems.setdefault((path, build_id), []).append(problem)
    return tuple(ModuleSummary(path, build_id, 0, tuple(each)) for (path, build_id), each in problems.items())


def _part(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _amount(found: Mapping[str, Any], name: str) -> float:
    """Return a number of the summary that is at least 0, and 0 for anything that is not a number."""
    value = found.get(name, 0)
    return min(max(value, 0), _MAX_NUMBER) if isinstance(value, int | float) else 0
