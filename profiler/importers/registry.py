"""Which format a file has, by its content; a recording of ours is one of them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath

from pyprof.errors import FormatError, RecordingError
from pyprof.importers import collapsed, perf_data, perf_script, pprof, speedscope
from pyprof.model.profile import Profile
from pyprof.recording import reader
from pyprof.recording.opening import MAGIC, read_bytes

IsOne = Callable[[bytes], bool]
Read = Callable[[bytes, str], Profile]
"""(data, title); raises FormatError."""

FORMATS: dict[str, tuple[IsOne, Read]] = {
    "speedscope": (speedscope.is_one, speedscope.read),
    "pprof": (pprof.is_one, pprof.read),
    "perf script": (perf_script.is_one, perf_script.read),
    "collapsed": (collapsed.is_one, collapsed.read),
}
"""In the order in which they are asked."""


def load(path: str | PathLike[str]) -> Profile:
    """The profile of a recording (NAME.pyprof), or of a pprof, speedscope or collapsed file or what perf script prints,
    gzipped or not, or of a perf.data. Raises RecordingError.
    """
    name = fspath(path)
    return reader.load(name) if is_recording(name) else _foreign(name)


def is_recording(path: str) -> bool:
    """Is it ours, or else another profiler's? Raises RecordingError."""
    return read_bytes(path, len(MAGIC)) == MAGIC


def _foreign(name: str) -> Profile:
    if read_bytes(name, len(perf_data.MAGIC)) == perf_data.MAGIC:
        return perf_data.load(name)
    data = read_bytes(name)
    kind = "gzip"
    try:
        plain = pprof.inflated(data)
        kind = next((kind for kind, (is_one, _) in FORMATS.items() if is_one(plain)), "" if plain is data else "pprof")
        if kind:
            _, read = FORMATS[kind]
            return read(plain, name.rsplit("/", 1)[-1])
    except (FormatError, OverflowError) as error:
        raise RecordingError(f"{name} is broken, or no {kind} file: {error}") from None
    known = ", ".join(["recordings", *FORMATS, "perf.data"])
    raise RecordingError(f"{name} is no file that is known", f"what is read: {known}")
