"""Runs of `pyprof dump --core --json` within the test process, which saves the start of an interpreter."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from pyprof.cli.main import run
from tests.core.making import Core

Document = dict[str, Any]


def dump(core: Core, *options: str, code: int | None = None) -> Document:
    """Return the JSON output with options for finding all files."""
    return dump_with(core, *core.options, *options, code=code)


def dump_with(core: Core, *options: str, code: int | None = None) -> Document:
    """Return the JSON output with these options only."""
    out, complaints = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        got = run(["dump", "--core", str(core.path), "--json", *options])
    assert got in ((0, 3) if code is None else (code,)), complaints.getvalue()
    out.seek(0)
    found: Document = json.loads(out.read())
    return found


def pcs(document: Document) -> dict[int, list[int]]:
    """Return the program counters of each thread from leaf to root, without inlined functions."""
    return {
        thread["tid"]: [int(frame["pc"], 16) for frame in thread["frames"] if not frame["inlined"]]
        for thread in document["threads"]
    }


def names(thread: Document) -> list[str]:
    """Return the function names from leaf to root."""
    return [frame["function"] or "?" for frame in thread["frames"]]
