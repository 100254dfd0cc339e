"""Reads a file in any known format. The content of the file tells its format; pyprof's own recording is one of them."""

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
"""Function that decodes a profile from (data of the file, title). It raises FormatError."""

FORMATS: dict[str, tuple[IsOne, Read]] = {
    "speedscope": (speedscope.is_speedscope, speedscope.read_speedscope),
    "pprof": (pprof.is_pprof, pprof.read_pprof),
    "perf script": (perf.is_perf_script, perf.read_perf_script),
    "collapsed": (collapsed.is_collapsed, collapsed.read_collapsed),
}
"""Formats of files in the order in which they are tried: for each a test and a reader."""


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
    """Return True if a file is a recording of pyprof (NAME.pyprof), False for another file.

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
