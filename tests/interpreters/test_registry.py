"""Tests of the registry of interpreters: the choice of a process's reader, and failures of single readers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from pyprof.errors import FormatError
from pyprof.interpreters.base import Detected, Interpreter, InterpreterContext, LiveProcess, NotBegun
from pyprof.interpreters.cpython.code_objects import PythonCode
from pyprof.interpreters.cpython.layout import LineTableFormat
from pyprof.interpreters.detection_symbols import KnownSymbols
from pyprof.interpreters.function_table import FunctionTable
from pyprof.interpreters.registry import KINDS, Interpreters, ProcessReaders
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_frames import Chain, FunctionPlace, SampleState
from pyprof.model.interpreter_reader_protocols import FrameReadPlan, Gather
from pyprof.problem_counters import Diagnostics, Finding

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

SPACE = AddressSpace(1, 1, 0, (), lambda avma, size: b"", "")


class Reader:
    lockless = False
    reads = True

    def __init__(self, module: str) -> None:
        self.names: dict[int, str] = {}
        self.module = ""
        self.later = module
        self.copied = 0

    def inspect_process(self, space: AddressSpace, tids: Collection[int]) -> None:
        self.module = self.later

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        self.copied = tid

    def learn(self) -> None: ...

    def ahead(self, tid: int) -> None:
        return None

    def copied_ahead(
        self, tid: int, ahead: FrameReadPlan, stack: memoryview, base: int, gather: Gather, now: Gather
    ) -> None: ...

    def read_names(self) -> None: ...

    def left(self, tid: int) -> str:
        return self.names.pop(tid, "")

    def take_chain(self) -> Chain:
        return Chain((), SampleState(0), self.module, (), False)

    def local_values(self, tid: int, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        return []

    def kernel_reader(self) -> None:
        return None

    @property
    def goroutines(self) -> None:
        return None


class Known(Interpreter):
    language = "Lisp"
    evaluators = ("lisp_eval",)
    found: Detected | None = Detected("Lisp", "1.5", "/usr/bin/lisp", "nobody reads it")

    def detect(self, process: LiveProcess) -> Detected | None:
        return self.found


class Broken(Known):
    def detect(self, process: LiveProcess) -> Detected | None:
        raise FormatError("/usr/bin/lisp", 0, "cut off")


class Young(Known):
    def detect(self, process: LiveProcess) -> Detected | None:
        raise NotBegun


class Absent(Known):
    found = None


def interpreters(*kinds: type[Interpreter]) -> Interpreters:
    return Interpreters(InterpreterContext(KnownSymbols(lambda *_: []), Diagnostics(), FunctionTable()), kinds)


def process() -> LiveProcess:
    return LiveProcess(1, lambda: [1], int, lambda: SPACE, lambda: b"")


def findings(*kinds: type[Interpreter]) -> Iterator[Finding]:
    return interpreters(*kinds).describe(process())


def test_reader_of_the_interpreter_that_runs_reads_the_process() -> None:
    nowhere: Any = memoryview(b"")
    first, second = Reader(""), Reader("/usr/bin/second")
    readers = ProcessReaders([first, second], lambda space: None)
    readers.copy(7, nowhere, 0, lambda spans: nowhere)
    assert (first.copied, second.copied) == (7, 0)
    readers.inspect_process(SPACE, [1])
    readers.copy(8, nowhere, 0, lambda spans: nowhere)
    assert (first.copied, second.copied) == (7, 8)
    chain = readers.take_chain()
    assert chain is not None
    assert chain.problem == "/usr/bin/second"


def test_interpreter_that_is_only_recognised_is_one_finding() -> None:
    (finding,) = findings(Known)
    assert not finding.ok
    assert finding.text == "it runs Lisp 1.5 in /usr/bin/lisp: Lisp functions are missing, nobody reads it"
    assert list(findings(Absent)) == list(findings(Young)) == []


def test_interpreter_whose_file_is_broken_does_not_hide_the_others() -> None:
    assert len(list(findings(Broken, Known))) == 1
    assert [found.language for found in interpreters(Known).find_unread(process())] == ["Lisp"]
    assert interpreters(Broken).find_unread(process()) == interpreters(Young).find_unread(process()) == []


def test_generated_code_is_named_by_the_interpreter_that_knows_its_name() -> None:
    known = interpreters(*KINDS)
    code = known.find_compiled_code("py::Thread.run:/usr/lib/threading.py")
    assert code is not None
    assert (code.language, code.line(-1).function, code.line(-1).file) == (
        "Python",
        "Thread.run",
        "/usr/lib/threading.py",
    )
    assert known.find_compiled_code("LazyCompile:~run /srv/a.js:1") is None


def test_languages_are_told_apart_by_their_frames() -> None:
    book = FunctionTable()
    index = book.add_code(PythonCode("f", "f", "a.py", 1, LineTableFormat.LOCATIONS, b""))
    assert book.code(index).language == "Python"
    assert book.code(index + 1).language == ""
