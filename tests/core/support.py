"""pyprof dump --core --json, in this process: the start of an interpreter costs more than a dump."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from pyprof.cli.main import run
from tests.core.making import Core

Document = dict[str, Any]


def dump(core: Core, *options: str, code: int | None = None) -> Document:
    """The JSON of all files found."""
    return dump_with(core, *core.options, *options, code=code)


def dump_with(core: Core, *options: str, code: int | None = None) -> Document:
    """The JSON, with these options only."""
    out, complaints = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        got = run(["dump", "--core", str(core.path), "--json", *options])
    assert got in ((0, 3) if code is None else (code,)), complaints.getvalue()
    out.seek(0)
    found: Document = json.loads(out.read())
    return found


def pcs(document: Document) -> dict[int, list[int]]:
    """tid -> pcs, innermost first; one a frame, inlined functions left out."""
    return {
        thread["tid"]: [int(frame["pc"], 16) for frame in thread["frames"] if not frame["inlined"]]
        for thread in document["threads"]
    }


def names(thread: Document) -> list[str]:
    """Functions of the program itself, innermost first."""
    return [frame["function"] or "?" for frame in thread["frames"]]
