"""`%load_ext pyprof` and `%%pyprof` in IPython and Jupyter: record a cell, and show the profile as a page below it.

A process cannot record itself. So a helper process records it while the cell runs (`helper()`), and ends with it at the
latest. The helper writes `READY` when the recording has begun. When it receives `END`, it writes the recording to the
file and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import select
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NoReturn

import numpy as np

from pyprof.cli.arguments import add_python
from pyprof.cli.recording_options import add_sampling, add_unwinding, record_options
from pyprof.collectors.linux import libc
from pyprof.errors import PyprofError, UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.prefix_tree import Tree
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.options import RecordOptions

NAME = "_pyprof"
"""Variable of the notebook that holds the profile of the last cell."""
READY, END = b"ready", b"end"
_HELPER = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pyprof.cli.ipython_magic import helper
helper()
"""
_POLL_S = 0.1
_WRITE_TIMEOUT_S = 60.0
"""Maximum time in seconds for the helper process of %%pyprof to resolve names and write the file."""


class _CellParser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of ending the notebook."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "%pyprof -h")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Helped


class _Helped(Exception):
    """The user asked for the help of %%pyprof, which is printed, so that the cell does not run."""


def options_of(line: str) -> RecordOptions:
    """Parse the options in the first line of a %%pyprof cell.

    Raises:
        UsageError: An option is wrong.
    """
    parser = _CellParser(prog="%%pyprof", description="Record this process while the cell runs.")
    add_sampling(parser)
    add_unwinding(parser)
    add_python(parser)
    parser.set_defaults(thread=None)
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line!r}: {error}") from None
    return record_options(parser.parse_args(words))


class _SecondProcess:
    """A helper process that records this process. It exists from construction to close()."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _HELPER, json.dumps(sys.path)]
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def begin(self, options: RecordOptions, path: str) -> None:
        """Start the recording in the helper process, and return when it has begun.

        Raises:
            PyprofError: The helper process has ended.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        libc.prctl(libc.PR_SET_PTRACER, self._child.pid)  # fails without Yama, which is the only one that requires it
        with suppress(BrokenPipeError):
            self._child.stdin.write(pickle.dumps((os.getpid(), options, path)))
            self._child.stdin.flush()
        if self._child.stdout.read(len(READY)) != READY:
            self.end()
            raise PyprofError("the process that records has ended")

    def end(self) -> None:
        """End the recording of the helper process, and return when it is written.

        Raises:
            PyprofError: The recording failed or was not written in time.
        """
        try:
            _, said = self._child.communicate(END, timeout=_WRITE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise PyprofError(f"the recording was not written within {_WRITE_TIMEOUT_S:g} s") from None
        if self._child.returncode:
            raise PyprofError(said.decode(errors="replace").strip() or "the process that records has ended")

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()
        libc.prctl(libc.PR_SET_PTRACER, 0)


@contextmanager
def _recorded(options: RecordOptions, found: list[Profile]) -> Iterator[None]:
    """Record this process within the context by means of a helper process, and append the profile to `found`."""
    from pyprof.importers.registry import load

    with tempfile.TemporaryDirectory(prefix="pyprof-") as folder:
        path = os.path.join(folder, "cell.pyprof")
        with closing(_SecondProcess()) as second:
            second.begin(options, path)
            yield
            second.end()
        found.append(of_cell(load(path)))


def of_cell(profile: Profile) -> Profile:
    """Remove the frames that run notebook cells from a profile: about thirty functions of the notebook's kernel at the
    root of each stack.
    """
    runs = [_runs_cells(frame) for frame in profile.frames]
    tree, place = Tree(), [0]
    for up, frame in zip(profile.parent.tolist()[1:], profile.frame.tolist()[1:], strict=True):
        place.append(0 if runs[frame] else tree.child(place[up], frame))
    return replace(
        profile,
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=np.array(place, np.int32)[profile.stack],
    )


def _runs_cells(frame: Frame) -> bool:
    if frame.kind != FrameKind.INTERPRETER or not frame.lines:
        return False
    name, file = frame.lines[0].function or "", frame.lines[0].file or ""
    return name.rpartition(".")[2] == "run_code" and file.endswith("IPython/core/interactiveshell.py")


def helper() -> None:
    """Record another process until END arrives on standard input. This is the main function of the helper process of
    %%pyprof.
    """
    from pyprof.cli.terminal_output import failure
    from pyprof.exporters.registry import save_profile
    from pyprof.options import TargetOptions
    from pyprof.session import recording_factory
    from pyprof.session.worker.worker_process import forked

    pid, options, path = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own child
    try:
        with recording_factory.of_processes(TargetOptions(pids=(pid,)), options, forked) as recording:
            recording.start()
            recording.wait_for_sampling()
            os.write(1, READY)
            while recording.running and not select.select([0], [], [], _POLL_S)[0]:
                pass
            save_profile(recording.stop(), path)
    except PyprofError as error:
        failure(error)
        sys.exit(1)


def install(shell: Any) -> None:
    """Register `%%pyprof` in an InteractiveShell of IPython."""
    from IPython.core.error import UsageError as CellUsageError
    from IPython.display import display

    def pyprof(line: str, cell: str | None = None) -> None:
        """Record this process while the cell runs, and show the result below the cell. Options are those of `pyprof
        record`.
        """
        found: list[Profile] = []
        try:
            if cell is None:  # %pyprof -h
                options_of(line)
                raise UsageError("%%pyprof records a cell, not a line", "%%pyprof, with the cell below it")
            with _recorded(options_of(line), found):
                shell.run_cell(cell)
        except _Helped:
            return
        except PyprofError as error:
            raise CellUsageError(f"{error}{f' ({error.hint})' if error.hint else ''}") from None
        shell.user_ns[NAME] = found[0]
        display(found[0])

    shell.register_magic_function(pyprof, "line_cell", "pyprof")
