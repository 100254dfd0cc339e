"""Runs of `pyprof dump --minidump --json` within the test process, which saves the start of an interpreter."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from pyprof.cli.main import run

Document = dict[str, Any]


def dump(path: Path, *options: str, code: int | None = None) -> Document:
    document, complaints = dump_and_complaints(path, *options, code=code)
    assert "Traceback" not in complaints
    return document


def dump_and_complaints(path: Path, *options: str, code: int | None = None) -> tuple[Document, str]:
    """Return the JSON output and standard error."""
    out, complaints = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        got = run(["dump", "--minidump", str(path), "--json", *options])
    assert got in ((0, 3) if code is None else (code,)), complaints.getvalue()
    out.seek(0)
    found: Document = json.loads(out.read())
    return found, complaints.getvalue()


def pcs(thread: Document) -> list[int]:
    """Return the program counters from leaf to root, without inlined functions."""
    return [int(frame["pc"], 16) for frame in thread["frames"] if not frame["inlined"]]


def functions(thread: Document) -> list[str]:
    return [frame["function"] or "?" for frame in thread["frames"]]


def trusts(thread: Document) -> list[str]:
    return [frame["trust"] for frame in thread["frames"]]
