"""The list of output formats. Importing it is cheap: a format's writer is imported when it first writes.

save_profile() writes a profile by the name or the suffix of a format.
"""

from __future__ import annotations

from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING, BinaryIO, cast

from pyprof.errors import OutputError, UsageError
from pyprof.lazy_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import RawIOBase

    from pyprof.exporters.base import ExportOptions
    from pyprof.model.profile import Profile


@dataclass(frozen=True, slots=True)
class Format:
    """An Exporter that imports its writer, the function `write` of a module, at the first use.

    Attributes:
        name: Name of the format for --format.
        suffixes: File name suffixes; the first one is the usual one.
        text: True if the format may be written to a terminal.
        summary: Description of the format in one phrase, for --help.
        module: Module of the writer, if it is not pyprof.exporters.<name>.
        gzipped: Compress the writer's output, because the file's name ends in .gz.
    """

    name: str
    suffixes: tuple[str, ...]
    text: bool
    summary: str
    module: str = ""
    gzipped: bool = False

    def write(self, profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
        """Import the writer of the format, and write a profile to an open binary file."""
        module = import_module(self.module or f"pyprof.exporters.{self.name}")
        writer = cast("Callable[[Profile, BinaryIO, ExportOptions], None]", module.write)
        if not self.gzipped:
            writer(profile, out, options)
            return
        import gzip
        from io import BufferedWriter

        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0) as packed,
            BufferedWriter(cast("RawIOBase", packed), _AT_ONCE) as gathered,
        ):
            writer(profile, gathered, options)


_AT_ONCE = 1 << 16
"""Number of bytes that are compressed at a time when an output file is written with gzip."""

RECORDING = "recording"
"""Name of the format of recording files, which --save writes."""

FORMATS: tuple[Format, ...] = (
    Format("flamegraph", (".html", ".htm"), False, "one HTML page that opens offline"),
    Format("speedscope", (".speedscope.json", ".speedscope.json.gz", ".json"), True, "JSON for speedscope, by time"),
    Format("collapsed", (".collapsed", ".folded", ".txt"), True, "one line a stack: frames;from;the;root COUNT"),
    Format("pprof", (".pb.gz", ".pprof", ".pb"), False, "gzipped profile.proto for go tool pprof and compatible tools"),
    Format(
        "chrome",
        (".trace.json", ".chrome.json"),
        True,
        "JSON for Perfetto and chrome://tracing, functions over time",
        "pyprof.exporters.chrome_trace",
    ),
    Format(
        "firefox",
        (".firefox.json.gz", ".json.gz", ".firefox.json"),
        False,
        "gzipped JSON for profiler.firefox.com",
    ),
    Format("otlp", (".otlp",), False, "OpenTelemetry's profiles signal (in development), as a file"),
    Format(
        RECORDING,
        (".pyprof",),
        False,
        "all recorded data, for pyprof report: a SQLite database",
        "pyprof.recording.writer",
    ),
)

DEFAULT = FORMATS[0]
"""The output format that is used if neither --format nor a suffix names one."""


def format_names() -> tuple[str, ...]:
    """Return the names that --format accepts, the default first."""
    return tuple(entry.name for entry in FORMATS)


def find_format(name: str, path: str = "") -> Format:
    """Return an output format by its name or by one of its suffixes without the dot, such as "html".

    Args:
        path: Path of the file, if there is one.

    Raises:
        UsageError: There is no such format.
    """
    for entry in FORMATS:
        if name == entry.name or f".{name}" in entry.suffixes:
            return _for_file(entry, path or name)
    raise UsageError(f"there is no output format {name!r}", f"the formats are {', '.join(format_names())}")


def find_format_for_file(path: str | PathLike[str]) -> Format | None:
    """Return the output format for a file name. The longest known suffix decides, without regard to case; None if no
    suffix is known.
    """
    name = fspath(path).rsplit("/", 1)[-1].lower()
    matches = [(len(suffix), entry) for entry in FORMATS for suffix in entry.suffixes if name.endswith(suffix)]
    return _for_file(max(matches, key=lambda match: match[0])[1], name) if matches else None


def _for_file(entry: Format, name: str) -> Format:
    """Return a format adapted to a file name: output in a text format is compressed if the name ends in .gz."""
    if entry.text and name.lower().endswith(".gz"):
        return replace(entry, text=False, gzipped=True)
    return entry


def save_profile(
    profile: Profile,
    path: str | PathLike[str],
    format: str | None = None,
    *,
    threads: bool = False,
    processes: bool = False,
    full_paths: bool = False,
) -> None:
    """Write a profile into a file in the format of its suffix or a named one (see Profile.save)."""
    from pyprof.exporters import output_file
    from pyprof.exporters.base import ExportOptions

    name = fspath(path)
    exporter = find_format(format, name) if format else find_format_for_file(name)
    if exporter is None:
        raise UsageError(f"the name {name} does not say which format to write", f"one of {', '.join(format_names())}")
    options = ExportOptions(threads, processes, full_paths)
    try:
        output_file.replace_file(name, lambda out: exporter.write(profile, out, options))
        if exporter.name == RECORDING:
            output_file.drop_logs(name)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{name} cannot be written: {error.strerror or error}") from error
