"""The format of a file, by its content; pyprof's own recording is one of them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath

from pyprof.errors import FormatError, RecordingError
from pyprof.importers import collapsed, perf, pprof, speedscope
from pyprof.model.profile import Profile
from pyprof.recording import reader
from pyprof.recording.untrusted_recording import MAGIC, read_bytes

IsOne = Callable[[bytes], bool]
Read = Callable[[bytes, str], Profile]
"""Function that reads a profile from (data, title); raises FormatError."""

FORMATS: dict[str, tuple[IsOne, Read]] = {
    "speedscope": (speedscope.is_speedscope, speedscope.read_speedscope),
    "pprof": (pprof.is_pprof, pprof.read_pprof),
    "perf script": (perf.is_perf_script, perf.read_perf_script),
    "collapsed": (collapsed.is_collapsed, collapsed.read_collapsed),
}
"""Readers of file formats in the order in which they are tried."""


def load(path: str | PathLike[str]) -> Profile:
    """Read a recording (NAME.pyprof), a pprof, speedscope or collapsed file, the output of perf script, or a perf.data
    file.

    Text formats and pprof may be gzipped.

    Raises:
        RecordingError: The file is broken or its format is not known.
    """
    name = fspath(path)
    return reader.load_recording(name) if is_recording(name) else _foreign(name)


def is_recording(path: str) -> bool:
    """Return True for a recording of pyprof, False for another file.

    Raises:
        RecordingError: The file cannot be read.
    """
    return read_bytes(path, len(MAGIC)) == MAGIC


def _foreign(name: str) -> Profile:
    if read_bytes(name, len(perf.MAGIC)) == perf.MAGIC:
        return perf.load_perf_data(name)
    data = read_bytes(name)
    kind = "gzip"
    try:
        plain = pprof.inflate(data)
        kind = next((kind for kind, (is_one, _) in FORMATS.items() if is_one(plain)), "" if plain is data else "pprof")
        if kind:
            _, read = FORMATS[kind]
            return read(plain, name.rsplit("/", 1)[-1])
    except (FormatError, OverflowError) as error:
        raise RecordingError(f"{name} is broken, or not a {kind} file: {error}") from None
    known = ", ".join(["recordings", *FORMATS, "perf.data"])
    raise RecordingError(f"{name} is not a file of a known format", f"known formats: {known}")
