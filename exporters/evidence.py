"""Extra pprof fields: how each frame was found, and what the recording did.

They are field 1000 of a Location, and fields 1000 and 1001 of the Profile. Protobuf readers skip unknown fields;
`importers/evidence.py` reads these. Values are texts rather than enum numbers, because the numbers may change.
docs/formats.md has the layout.
"""

from __future__ import annotations

from pyprof.exporters.protobuf import data, number
from pyprof.exporters.utf8 import dumps
from pyprof.model.profile import Frame
from pyprof.model.summary import Summary
from pyprof.model.walk import Trust

FIELD = 1000
MOST_LACKS = 100
STACKS = 1001
"""Field of the Profile with the digest of each sample's stack, in the order of the samples (model/stack_digest.py)."""


def of_frame(frame: Frame) -> bytes:
    """Return the evidence of a frame as a field of a Location."""
    return data(FIELD, message(frame))


def message(frame: Frame) -> bytes:
    """Return the evidence of a frame as a message without its field number."""
    parts = [data(1, Trust(frame.trust).label.encode()), data(2, frame.kind.name.lower().encode())]
    mark = frame.mark
    if mark is not None:
        parts += [data(3, mark.kind.name.lower().encode()), data(4, mark.end.label.encode())]
        parts += [number(5, mark.enough), number(6, mark.unplaced), number(7, mark.without_run)]
        parts.append(number(8, mark.lacking))
    return b"".join(parts)


def of_summary(summary: Summary) -> bytes:
    """Return the summary as a field of the Profile: parts of `--summary`'s JSON, and missing debug information of
    files.
    """
    whole = summary.to_json()
    names = ("rate_wanted", "rate_reached", "skipped", "errors", "stops", "not_stopped", "processor")
    lacks = [
        (module.path, module.build_id, problem.text, problem.remedy)
        for module in summary.modules
        for problem in module.problems
    ]
    return data(FIELD, dumps({**{name: whole[name] for name in names}, "lacks": lacks[:MOST_LACKS]}))
