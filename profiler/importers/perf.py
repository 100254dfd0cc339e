"""Reads the output of `perf script`, and a `perf.data` file by means of an installed perf.

`perf script` (Linux, tools/perf/Documentation/perf-script.txt) prints a line for each sample, then its frames. The
innermost frame is first. perf has named the functions. Addresses are taken as printed, whether they are those of the
process or of the file. perf's clock does not count from the epoch, so the profile begins at its first sample.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from pyprof.errors import FormatError, RecordingError
from pyprof.importers.profile_builder import About, Builder
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import base_name
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.unwind_result import Trust

_SAMPLE = re.compile(
    rb"\s*(?P<name>\S.{0,63}?)\s+(?:(?P<pid>-?\d{1,10})/)?(?P<tid>-?\d{1,10})\s+(?:\[(?P<cpu>\d{1,6})\]\s+)?"
    rb"(?:[\w.]{4,5}\s+)?(?P<s>\d{1,9})\.(?P<part>\d{6}|\d{9}):\s*(?:(?P<period>\d{1,18})\s+)?"
    rb"(?:(?P<event>\S+):(?=\s))?(?P<rest>.*)",
    re.DOTALL,
)
_FRAME = re.compile(rb"\s+([0-9a-f]{1,16}) (.*)")
_ALONE = re.compile(rb"\s*[0-9a-f]{1,16} \S.*\)\s*")
"""Pattern of a sample without callers: `perf script` prints its only frame on the sample's line."""
_OFFSET = re.compile(r"\+0x([0-9a-f]{1,16})$")
_SOURCE = re.compile(rb"  (\S.*):(\d{1,9})\s*")
_MODIFIERS = re.compile(r":[ukhHGpPSDIWeb]+$")
_CLOCKS = ("cpu-clock", "task-clock")
"""Names of perf events whose period is processor time in nanoseconds."""
_UNKNOWN, _DELETED, _PYTHON = "[unknown]", "(deleted)", "py::"
_FIRST_LINES, _LONGEST = 1000, 1 << 16
_MAX_OF_STACK = 1 << 17
"""Maximum number of lines of a stack in the output of `perf script`. perf unwinds at most 65,535 frames, and may print
a source line for each.
"""
_MAX_KEPT = 1 << 26
"""Maximum total size in bytes of the stacks of `perf script` that are cached by their text."""
_MAX_TOTAL = 1 << 62
_NOT_KNOWN = -1


def is_perf_script(data: bytes) -> bool:
    """Return True if data looks like the output of `perf script`: its first line that is neither empty nor a comment
    describes a sample.
    """
    start = data[:_LONGEST].splitlines(keepends=True)[:_FIRST_LINES]
    first = next((line for line in start if line.strip() and not line.startswith(b"#")), b"")
    found = _SAMPLE.fullmatch(first)
    return found is not None and (found["event"] is not None or not found["rest"].strip())


def read_perf_script(data: bytes, title: str) -> Profile:
    """Read the samples in the output of `perf script`.

    Raises:
        FormatError: No line is a sample.
        OverflowError: A number is too large for a Profile.
    """
    return read_perf_script_lines(BytesIO(data), title)


def read_perf_script_lines(lines: Iterable[bytes], title: str) -> Profile:
    """Read the samples in lines of the output of `perf script`. Only samples of the first sample's event are read.

    Raises:
        FormatError: No line is a sample.
        OverflowError: A number is too large for a Profile.
    """
    return _Reader().profile(lines, title)


@dataclass(frozen=True, slots=True)
class _StackLine:
    """One line of a stack in the output of `perf script`. The function's name is "" if it is not known."""

    address: int
    name: str
    offset: int
    file: str


class _Reader:
    def __init__(self) -> None:
        self._builder = Builder()
        self._nodes: dict[bytes, int] = {}
        self._kept = 0
        self._rows = array("q")
        self._names: dict[tuple[int, int], str] = {}
        self._event: str | None = None
        self._others: Counter[str] = Counter()
        self._left_out = 0

    def profile(self, lines: Iterable[bytes], title: str) -> Profile:
        header: re.Match[bytes] | None = None
        stack: list[bytes] = []
        for line in lines:
            if len(stack) > _MAX_OF_STACK:
                raise FormatError("line", 0, f"a stack of more than {_MAX_OF_STACK:,} lines")
            if line[:1] == b"\t" and header:
                stack.append(line)
            elif not line.strip() or line[:1] == b"#":
                self._finish(header, stack)
                header = None
            elif found := _SAMPLE.fullmatch(line):
                self._finish(header, stack)
                header, stack = found, [b" " + found["rest"]] if _ALONE.fullmatch(found["rest"]) else []
            elif header and line[:1] == b" ":
                stack.append(line)
            else:
                self._left_out += 1
        self._finish(header, stack)
        if not len(self._rows):
            raise FormatError("line", 0, "no line is a sample of perf")
        return self._build(title)

    def _finish(self, sample: re.Match[bytes] | None, stack: list[bytes]) -> None:
        """Add the `perf script` sample whose lines have been read, if there is one, to the profile."""
        if sample is None:
            return
        event = _MODIFIERS.sub("", _text(sample["event"])) if sample["event"] else ""
        if self._event is None:
            self._event = event
        if event != self._event:
            self._others[event] += 1
            return
        pid, tid, cpu = (int(sample[key] or _NOT_KNOWN) for key in ("pid", "tid", "cpu"))
        self._names[pid, tid] = _text(sample["name"])
        at = int(sample["s"]) * 1_000_000_000 + int(sample["part"].ljust(9, b"0"))
        self._rows.extend((at, pid, tid, cpu, self._node(stack), int(sample["period"] or 1)))
        stack.clear()

    def _node(self, lines: Sequence[bytes]) -> int:
        text = b"".join(lines)
        node = self._nodes.get(text)
        if node is None:
            frames = [self._builder.add_frame(frame) for frame in self._frames(lines)]
            node = self._builder.add_stack(reversed(frames))
            self._kept += len(text)
            if self._kept > _MAX_KEPT:
                self._nodes.clear()
                self._kept = 0
            self._nodes[text] = node
        return node

    def _frames(self, lines: Sequence[bytes]) -> Iterator[Frame]:
        """Yield the frames of a `perf script` sample, innermost first. perf prints inlined functions before the
        function that contains them.
        """
        codes: list[tuple[_StackLine, str | None, int]] = []
        for line in lines:
            if found := _FRAME.fullmatch(line.rstrip()):
                codes.append((_code(int(found[1], 16), _text(found[2])), None, 0))
            elif codes and (found := _SOURCE.fullmatch(line)):
                codes[-1] = codes[-1][0], _text(found[1]), int(found[2])
            else:
                self._left_out += 1
        inlined: list[Line] = []
        innermost = True
        for at, (code, file, number) in enumerate(codes):
            if code.name:
                inlined.append(Line(code.name, code.name, code.offset, file, number))
            if code.file != "inlined" or at == len(codes) - 1:
                yield self._frame(code, inlined, innermost)
                inlined, innermost = [], False

    def _frame(self, code: _StackLine, lines: Sequence[Line], innermost: bool) -> Frame:
        kernel = code.address >> 63 or code.file.startswith(("[kernel", "[guest.kernel"))
        kind = FrameKind.KERNEL if kernel else FrameKind.NATIVE
        title = code.name
        if code.name.startswith(_PYTHON):  # a trampoline of python -X perf: py::qualified.name:/path/of.py
            kind = FrameKind.INTERPRETER
            title, _, script = code.name.removeprefix(_PYTHON).partition(":")
            lines = (Line(title, code.name, code.offset, script or None),)
        lookup = max(code.address - (not innermost), 0)
        module = -1
        if kind is FrameKind.NATIVE and code.file not in ("", _UNKNOWN, "inlined"):
            module = self._builder.add_module(ModuleInfo(code.file, "", 0, 0, 0, bool(lines), False))
        if not title:
            title = f"{base_name(code.file)}+{code.address:#x}" if module >= 0 else f"{code.address:#x}"
        return Frame(kind, code.address, lookup, code.address, module, tuple(lines), Trust.CONTEXT, title)

    def _build(self, title: str) -> Profile:
        rows = np.array(self._rows, np.int64).reshape(-1, 6)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        first, last = int(rows[0, 0]), int(rows[-1, 0])
        if rows[:, 5].sum(dtype=np.float64) >= _MAX_TOTAL:
            raise OverflowError("the values of all samples together are too large")
        types, period = [ValueType("samples", "count")], 1
        if self._event in _CLOCKS:
            types.append(ValueType("cpu", "nanoseconds"))
            period = int(np.median(rows[:, 5]))
        elif self._event:
            types.append(ValueType(self._event, "count"))
        threads = {key: self._thread(*key) for key in self._names}
        for at, pid, tid, _, node, value in rows.tolist():
            self._builder.add_sample(node, (1, value)[: len(types)], threads[pid, tid], at - first)
        notes = [make_note("read_from_perf", event=self._event or "an event")]
        if self._others:
            names = ", ".join(sorted(self._others)[:5])
            notes.append(make_note("other_events_left_out", count=self._others.total(), names=names))
        if self._left_out:
            notes.append(make_note("lines_left_out", count=self._left_out))
        about = About(title, tuple(types), tuple(notes), 0, last - first + period, period, evidence=False)
        found = self._builder.build(about)
        cpu = rows[:, 3].astype(np.int32)
        return replace(found, cpu=cpu) if (cpu != _NOT_KNOWN).any() else found

    def _thread(self, pid: int, tid: int) -> ThreadInfo:
        """Return the thread of a `perf script` sample. By default perf prints only the tid, so the pid may be
        unknown.
        """
        if pid == _NOT_KNOWN:
            return ThreadInfo(0, max(tid, 0), self._names[pid, tid], "")
        name = self._names[pid, tid]
        return ThreadInfo(max(pid, 0), max(tid, 0), name, self._names.get((pid, pid), name))


def _text(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _code(address: int, text: str) -> _StackLine:
    """Parse one line of a stack in the output of `perf script`: `function+0xoffset (/path/of/file)`. Offset and file
    may be missing.
    """
    file = ""
    if text.endswith(")"):
        at = text.rfind(" (", 0, -len(_DELETED) - 2 if text.endswith(_DELETED + ")") else None)
        if at > 0:
            text, file = text[:at], text[at + 2 : -1]
    name = _OFFSET.sub("", text)
    offset = int(text[len(name) + 3 :], 16) if name != text else 0
    return _StackLine(address, "" if name == _UNKNOWN else name, offset, file)


MAGIC = b"PERFILE2"
_MAX_LINE = 1 << 20
_MAX_SAID = 300
_ELSEWHERE = "where perf is: perf script -F +pid > a.txt, which pyprof reads, too"


def load_perf_data(path: str) -> Profile:
    """Read a perf.data file by running perf, without inlined functions, because perf needs minutes for them.

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
        notes = (*found.summary.notes, make_note("perf_failed", why=_first_line(errors) or f"exit code {code}"))
        return replace(found, summary=replace(found.summary, notes=notes))


def _printed(command: list[str], errors: IO[bytes], title: str) -> tuple[Profile, int]:
    """Run a `perf script` command. Return the profile in its output, and its exit code."""
    environment = os.environ | {"LC_ALL": "C"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
    ) as perf:
        output = perf.stdout
        assert output is not None
        try:
            found = read_perf_script_lines(iter(lambda: output.readline(_MAX_LINE), b""), title)
        except BaseException:
            perf.kill()
            raise
        return found, perf.wait()


def _first_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read(_MAX_SAID).decode("utf-8", "replace").strip().split("\n", 1)[0].strip()
