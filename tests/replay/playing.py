"""Replay of a saved recording: all outputs of pyprof by name."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from pyprof.exporters import registry
from pyprof.exporters.base import ExportOptions
from pyprof.interpreters.cpython.code_objects import PythonCode
from pyprof.interpreters.cpython.layout import LineTableFormat
from pyprof.interpreters.function_table import UNKNOWN
from pyprof.model.profile import Profile
from pyprof.objfile.debug_files import DebugFiles
from pyprof.options import UnwindOptions, ViewOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.sample_windows import Clock, Window
from pyprof.session.session import InputFiles, Session
from tests.replay.batch_log import ReplayCollector

LOGS = Path(__file__).parent.parent / "fixtures" / "replay"
EPOCH_NS = 1_700_000_000_000_000_000
FILES = "files/"
"""Folder of the modules' files within a log."""


@contextmanager
def unpacked(log: Path) -> Iterator[Path]:
    """Yield a folder with the files of a log's modules at their paths."""
    with TemporaryDirectory() as folder, zipfile.ZipFile(log) as stored:
        for name in stored.namelist():
            if name.startswith(FILES):
                stored.extract(name, folder)
        yield Path(folder) / FILES


def played(log: Path, files: Path) -> tuple[Session, Window]:
    """Return a session that has processed a whole log."""
    collector = ReplayCollector(str(log), str(files))
    diagnostics = Diagnostics()
    options = UnwindOptions()
    found = InputFiles(options, diagnostics)
    found.images._debug_files = DebugFiles(diagnostics, ())  # ignores this machine's debug files
    session = Session(collector, options, diagnostics, found, clock=Clock(is_of_samples=False))
    learn_codes(session, collector.extra.get("codes", {}))
    window = session.run(collector)
    assert session.failure is None, session.failure
    return session, window


def codes_of(session: Session) -> dict[str, Any]:
    """Return the code objects that a session knows as JSON."""
    book = session.runtimes.book
    return {
        str(index): [c.name, c.qualname, c.filename, c.first_line, c.lines.name, c.table.hex(), c.hidden]
        for index, c in book.codes.items()
        if isinstance(c, PythonCode)
    }


def learn_codes(session: Session, stored: dict[str, Any]) -> None:
    book = session.runtimes.book
    known = {index: code for index, code in stored.items() if int(index) != UNKNOWN}
    for index, (name, qualname, filename, first, lines, table, hidden) in known.items():
        book.codes[int(index)] = PythonCode(
            name, qualname, filename, first, LineTableFormat[lines], bytes.fromhex(table), hidden
        )


def profile_of(session: Session, window: Window, mode: str, rate_hz: float, view: ViewOptions) -> Profile:
    """Return the profile of a window with fixed times and costs."""
    first = int(window.time_ns.min())
    window = replace(
        window, start_ns=EPOCH_NS, duration_ns=10**9, time_ns=(window.time_ns - first) // 1000 * 1000 + EPOCH_NS
    )
    profile = session.profile(window, "replayed", rate_hz, mode, view)
    names = replace(profile.summary.names, kept_bytes=0)
    summary = replace(profile.summary, profiler_cpu_s=0.0, profiler_max_rss_kb=0, names=names)
    return replace(profile, summary=summary)


def profiles(log: Path, files: Path) -> Iterator[tuple[str, Profile]]:
    """Yield (view, profile) of a log. A log of Python has two views."""
    with zipfile.ZipFile(log) as stored:
        facts = orjson.loads(stored.read("log.json"))["extra"]
    for name in ("extensions", "all") if any(index != "0" for index in facts["codes"]) else ("all",):
        session, window = played(log, files)
        yield name, profile_of(session, window, facts["mode"], facts["rate_hz"], ViewOptions(native=name))


def written(name: str, profile: Profile) -> dict[str, bytes]:
    """Return the output of each exporter, and the summary.

    Recordings are left out: their bytes depend on SQLite's version.
    """
    found: dict[str, bytes] = {}
    for entry in registry.FORMATS:
        if entry.name != "recording":
            out = io.BytesIO()
            entry.write(profile, out, ExportOptions(threads=True))
            data = out.getvalue()
            found[f"{name}.{entry.name}"] = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    found[f"{name}.summary"] = orjson.dumps(profile.summary.to_json(), option=orjson.OPT_INDENT_2)
    return found


def outputs(log: Path, files: Path) -> dict[str, bytes]:
    """Return the outputs of each exporter and the summary for all views of a log."""
    return {key: data for name, profile in profiles(log, files) for key, data in written(name, profile).items()}
