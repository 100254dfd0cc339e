"""A `perf.data` file, read through an installed perf, which reads it, unwinds and resolves names."""

from __future__ import annotations

import os
import shutil
import subprocess
from tempfile import TemporaryFile
from typing import IO

from pyprof.errors import FormatError, RecordingError
from pyprof.importers import perf_script
from pyprof.model.profile import Profile
from pyprof.model.reasons import said
from pyprof.records import replace

MAGIC = b"PERFILE2"
_MAX_LINE = 1 << 20
_MAX_SAID = 300
_ELSEWHERE = "where perf is: perf script -F +pid > a.txt, which pyprof reads, too"


def load_perf_data(path: str) -> Profile:
    """Read a perf.data file without inlined functions, which take perf minutes.

    Raises:
        RecordingError: perf is not installed, or finds nothing in the file.
    """
    program = shutil.which("perf")
    if program is None:
        raise RecordingError(f"{path} is read through perf, which is not installed", _ELSEWHERE)
    command = [program, "script", "--no-inline", "--ns", "-F", "+pid", "-i", os.path.abspath(path)]
    with TemporaryFile() as errors:
        try:
            found, code = _printed(command, errors, path.rsplit("/", 1)[-1])
        except OSError as error:
            raise RecordingError(f"perf cannot be run: {error.strerror}", _ELSEWHERE) from None
        except (FormatError, OverflowError) as error:
            raise RecordingError(f"perf script finds nothing in {path}: {_first_line(errors) or error}") from None
        if code == 0:
            return found
        notes = (*found.summary.notes, said("perf_failed", why=_first_line(errors) or f"exit code {code}"))
        return replace(found, summary=replace(found.summary, notes=notes))


def _printed(command: list[str], errors: IO[bytes], title: str) -> tuple[Profile, int]:
    """Run perf, and return the profile that it prints and its exit code."""
    environment = os.environ | {"LC_ALL": "C"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
    ) as perf:
        output = perf.stdout
        assert output is not None
        try:
            found = perf_script.read_perf_script_lines(iter(lambda: output.readline(_MAX_LINE), b""), title)
        except BaseException:
            perf.kill()
            raise
        return found, perf.wait()


def _first_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read(_MAX_SAID).decode("utf-8", "replace").strip().split("\n", 1)[0].strip()
