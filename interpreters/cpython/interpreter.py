"""CPython as an interpreters.base.Interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from pyprof.interpreters.base import Detected, Interpreter, LiveProcess
from pyprof.interpreters.cpython.code_objects import LANGUAGE, PythonCode
from pyprof.interpreters.cpython.layout import LineTableFormat
from pyprof.interpreters.cpython.runtime_location import is_own
from pyprof.model.loss_reason_texts import make_cause
from pyprof.problem_counters import Finding

if TYPE_CHECKING:  # a process that only names frames reads none
    from pyprof.interpreters.cpython.detection import CPythonFileCache
    from pyprof.interpreters.cpython.process_reader import PythonProcess

_TRAMPOLINE = "py::"
"""Prefix of CPython's trampolines in a perf map: py::qualified.name:/path/of.py."""
_FIRST_TRAMPOLINE, _FIRST_REMOTE_EXEC = 12, 14


class CPython(Interpreter):
    """The interpreter CPython 3.8 and later: detection, and readers of its frames."""

    language = LANGUAGE
    evaluators = ("_PyEval_EvalFrame", "PyEval_EvalFrameEx", "_PyEval_Vector", "_TAIL_CALL_")
    hint = "--collector ptrace"

    @cached_property
    def _programs(self) -> CPythonFileCache:
        from pyprof.interpreters.cpython.detection import CPythonFileCache

        return CPythonFileCache(self.recording.symbols)

    def detect(self, process: LiveProcess) -> Detected | None:
        tids = {process.namespace_tid(tid) for tid in process.tasks()}
        runtime = self._programs.find_runtime(process.space, tids.__contains__)
        if runtime is None:
            return None
        version, module = runtime.layout.version, runtime.located.module.path
        stops = "" if is_trampoline_on(process) else make_cause("without_trampoline", version=version)
        return Detected(LANGUAGE, version, module, stops=stops)

    def open_reader(self, process: LiveProcess) -> PythonProcess:
        from pyprof.interpreters.cpython.process_reader import PythonProcess

        return PythonProcess(self.recording, self._programs, process.namespace_tid)

    def is_own(self, module: str) -> bool:
        return is_own(module)

    def find_compiled_code(self, name: str) -> PythonCode | None:
        """Return the Python function of a perf trampoline. The result has no line, because the trampoline's name has
        none.
        """
        if not name.startswith(_TRAMPOLINE):
            return None
        function, _, file = name.removeprefix(_TRAMPOLINE).partition(":")
        return PythonCode(function, function, file, 0, LineTableFormat.LOCATIONS, b"")

    def describe(self, process: LiveProcess) -> Iterator[Finding]:
        reader = self.open_reader(process)
        tids = process.tasks()
        reader.inspect_process(process.space, tids)
        if reader.refusal:
            yield Finding(False, f"{reader.refusal}: its stacks are native only")
        if reader.runtime is None:
            return
        layout = reader.runtime.layout
        threads = sum(bool(reader.thread_states(tid)) for tid in tids)
        yield Finding(True, f"it runs CPython {layout.version} in {reader.module}, {threads} Python threads")
        if is_trampoline_on(process):
            yield Finding(True, "its perf trampoline is on: --collector perf names Python functions without a stop")
        elif layout.minor >= _FIRST_TRAMPOLINE:
            text = "its perf trampoline is off: Python frames are copied by a program in the kernel (BPF), or in stops"
            yield Finding(True, text, _hint(process.pid, layout.minor))


def is_trampoline_on(process: LiveProcess) -> bool:
    """Return True if the process writes a perf map of Python functions (python -X perf,
    sys.activate_stack_trampoline).
    """
    try:
        return b" " + _TRAMPOLINE.encode() in process.perf_map()
    except OSError:
        return False


def _hint(pid: int, minor: int) -> str:
    """Return a sentence for the user that says how to switch on the perf trampoline in a running Python process. That
    changes the process, so pyprof does not do it.
    """
    import tempfile

    if minor < _FIRST_REMOTE_EXEC or not _shares_folder(pid, tempfile.gettempdir()):
        return "for samples without stops start it with: python -X perf"
    return (
        "for samples without stops: f=$(mktemp) && chmod 644 $f && "
        "echo 'import sys; sys.activate_stack_trampoline(\"perf\")' > $f && "
        f"python3.{minor} -c 'import sys; sys.remote_exec({pid}, sys.argv[1])' $f"
    )


def _shares_folder(pid: int, folder: str) -> bool:
    """Return True if the folder of perf maps is the same for the process and for pyprof: no container, no private
    /tmp.
    """
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root{folder}"), os.stat(folder))
    except OSError:
        return False
