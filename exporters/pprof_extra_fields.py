"""Extra pprof fields: how each frame was found, and what the recording did.

They are field 1000 of a Location, and fields 1000 and 1001 of the Profile. Protobuf readers skip unknown fields;
`importers/pprof_extra_fields.py` reads these. Values are texts rather than enum numbers, because the numbers may
change. docs/formats.md has the layout.
"""

from __future__ import annotations

from pyprof.exporters.protobuf import encode_data, encode_number
from pyprof.exporters.utf8 import dump_json
from pyprof.model.profile import Frame
from pyprof.model.summary import Summary
from pyprof.model.walk import Trust

FIELD = 1000
MAX_LACKS = 100
STACKS = 1001
"""Field of the pprof Profile with the digest of each sample's stack, in the order of the samples
(model/stack_digest.py).
"""


def encode_frame(frame: Frame) -> bytes:
    """Return the evidence of how a frame was found as a field of a pprof Location."""
    return encode_data(FIELD, encode_frame_message(frame))


def encode_frame_message(frame: Frame) -> bytes:
    """Return the evidence of how a frame was found as a protobuf message without its field number."""
    parts = [encode_data(1, Trust(frame.trust).label.encode()), encode_data(2, frame.kind.name.lower().encode())]
    mark = frame.mark
    if mark is not None:
        parts += [encode_data(3, mark.kind.name.lower().encode()), encode_data(4, mark.end.label.encode())]
        parts += [encode_number(5, mark.enough), encode_number(6, mark.unplaced), encode_number(7, mark.without_run)]
        parts.append(encode_number(8, mark.lacking))
    return b"".join(parts)


def encode_summary(summary: Summary) -> bytes:
    """Return a recording's summary as a field of the pprof Profile: parts of `--summary`'s JSON, and missing debug
    information of files.
    """
    whole = summary.to_json()
    names = ("rate_wanted", "rate_reached", "skipped", "errors", "stops", "not_stopped", "processor")
    lacks = [
        (module.path, module.build_id, problem.text, problem.remedy)
        for module in summary.modules
        for problem in module.problems
    ]
    return encode_data(FIELD, dump_json({**{name: whole[name] for name in names}, "lacks": lacks[:MAX_LACKS]}))
