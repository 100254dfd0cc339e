"""Conversion of a frame to a text of the database, and back.

The parts of the text are kind, trust, mark, file, build ID, place in the file, title, and lines. They are separated by
characters that are replaced in names. So a text states everything that the frame's segment stated, and equal frames
have equal texts.
"""

from __future__ import annotations

import re

from pyprof.exporters import pprof as written
from pyprof.importers import pprof_extra_fields
from pyprof.importers.protobuf import parse_fields
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo
from pyprof.model.walk import Trust

_PART, _LINE, _FIELD = "\x1f", "\x1e", "\x1d"
_PARTS, _FIELDS = 8, 4
_WORD = 1 << 64
_MAX_NAME, _MAX_LINES = 1 << 14, 1000
"""Maximum number of characters of one part of a frame's text, and of lines of a frame; the innermost lines are kept."""
_OFFSET = re.compile(r"\+[0-9a-f]{1,16}", re.ASCII)
_CLEAN = str.maketrans({_PART: "?", _LINE: "?", _FIELD: "?", "\0": "?"})
_KINDS = {kind.name.lower(): kind for kind in FrameKind}
_TRUSTS = {trust.label: trust for trust in Trust}


def text_of(frame: Frame, modules: tuple[ModuleInfo, ...]) -> str:
    """Return the text by which the database stores a frame.

    Args:
        modules: Modules of the frame's pprof file, in which Frame.rel is the offset in the module's file.
    """
    module = modules[frame.module] if frame.module >= 0 else None
    mark = written.encode_frame(frame).hex() if frame.mark is not None else ""
    lines = _LINE.join(
        _FIELD.join((_clean(each.function), _clean(each.system_name), _clean(each.file or ""), str(each.line)))
        for each in frame.lines[:_MAX_LINES]
    )
    where = (
        (_clean(module.path), _clean(module.build_id), f"+{frame.rel % _WORD:x}")
        if module is not None
        else ("", "", f"{frame.lookup:x}")
    )
    head = (frame.kind.name.lower(), Trust(frame.trust).label, mark)
    return _PART.join((*head, *where, _clean(frame.title), lines))


def cut_name(text: str) -> str:
    """Cut a function's name to the maximum length in the database."""
    return text[:_MAX_NAME]


def _clean(text: str) -> str:
    return cut_name(text).translate(_CLEAN).encode("utf-8", "replace").decode()


def frame_of(text: str, module: int) -> Frame:
    """Return the frame of a text in the database. A text without the right parts becomes a frame with that title.

    Args:
        module: Index of module_of(text), -1 if there is none.
    """
    parts = text.split(_PART)
    if len(parts) != _PARTS:
        return Frame(FrameKind.NATIVE, 0, 0, 0, -1, (), Trust.CONTEXT, text)
    kind_name, trust, mark, _, _, rel, title, lines = parts
    kind = _KINDS.get(kind_name, FrameKind.NATIVE)
    place = int(rel, 16) if rel else 0
    found = tuple(_line(each) for each in lines.split(_LINE)) if lines else ()
    said = _mark(mark, kind, title).mark if mark else None
    return Frame(kind, place, place, place, module, found, _TRUSTS.get(trust, Trust.CONTEXT), title, said)


def file_offset(text: str) -> int | None:
    """Return the file offset of a frame's code that its text in the database states, None if it states none."""
    parts = text.split(_PART)
    return int(parts[5], 16) if len(parts) == _PARTS and _OFFSET.fullmatch(parts[5]) else None


def _mark(text: str, kind: FrameKind, title: str) -> pprof_extra_fields.FrameEvidence:
    for _, value in parse_fields(bytes.fromhex(text)):
        if isinstance(value, bytes):
            return pprof_extra_fields.read_frame_evidence(value, kind, title)
    return pprof_extra_fields.FrameEvidence(kind)


def _line(text: str) -> Line:
    function, system_name, file, line = (*text.split(_FIELD), "", "", "")[:_FIELDS]
    return Line(function, system_name, 0, file or None, int(line) if line.isdigit() else 0)


def module_of(text: str) -> ModuleInfo | None:
    """Return the object file that contains a frame, from the frame's text."""
    parts = text.split(_PART)
    if len(parts) != _PARTS or not parts[3]:
        return None
    return ModuleInfo(parts[3], parts[4], 0, 0, 0, bool(parts[7]), False)
