"""Writes a profile into a file, by name or suffix of a format."""

from __future__ import annotations

from os import PathLike, fspath

from pyprof.errors import OutputError, UsageError
from pyprof.exporters import output_file, registry
from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile


def save_profile(
    profile: Profile,
    path: str | PathLike[str],
    format: str | None = None,
    *,
    threads: bool = False,
    processes: bool = False,
    full_paths: bool = False,
) -> None:
    """Write a profile into a file; see Profile.save."""
    name = fspath(path)
    exporter = registry.find_format(format, name) if format else registry.find_format_for_file(name)
    if exporter is None:
        raise UsageError(
            f"the name {name} does not say which format to write", f"one of {', '.join(registry.format_names())}"
        )
    options = ExportOptions(threads, processes, full_paths)
    try:
        output_file.replace_file(name, lambda out: exporter.write(profile, out, options))
        if exporter.name == registry.RECORDING:
            output_file.drop_logs(name)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{name} cannot be written: {error.strerror or error}") from error
