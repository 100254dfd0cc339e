"""What pprof's own fields have no place for: how each frame was found, and what the recording did.

It stands in field 1000 of a Location and of the Profile, and in field 1001 of that. Readers of protocol buffers pass
over fields that they do not know; `importers/evidence.py` reads them. Texts, so that numbers may change:
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
"""Of the Profile: the digest of each sample's stack, in the order of the samples (model/stack_digest.py)."""


def of_frame(frame: Frame) -> bytes:
    """A field of a Location."""
    return data(FIELD, message(frame))


def message(frame: Frame) -> bytes:
    """The same without its number."""
    parts = [data(1, Trust(frame.trust).label.encode()), data(2, frame.kind.name.lower().encode())]
    mark = frame.mark
    if mark is not None:
        parts += [data(3, mark.kind.name.lower().encode()), data(4, mark.end.label.encode())]
        parts += [number(5, mark.enough), number(6, mark.unplaced), number(7, mark.without_run)]
        parts.append(number(8, mark.lacking))
    return b"".join(parts)


def of_summary(summary: Summary) -> bytes:
    """A field of the Profile: parts of `--summary`'s JSON, and what its files lack."""
    whole = summary.to_json()
    names = ("rate_wanted", "rate_reached", "skipped", "errors", "stops", "not_stopped", "processor")
    lacks = [
        (module.path, module.build_id, problem.text, problem.remedy)
        for module in summary.modules
        for problem in module.problems
    ]
    return data(FIELD, dumps({**{name: whole[name] for name in names}, "lacks": lacks[:MOST_LACKS]}))
