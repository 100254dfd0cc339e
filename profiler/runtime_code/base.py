"""The interface of a source of descriptions of JIT code, such as a perf map or the memory of a Java virtual machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.jit_code_map import CodeName, Span
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.unwind_result import Trust, Walk
from pyprof.objfile.mapped_object_files import Image
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.unwind.rules import FunctionRows, Rule

I64 = npt.NDArray[np.int64]
Rows = tuple[FunctionRows, Trust]
RuleAt = Callable[[int, bool], Rule | None]
"""Function that finds the unwind rule for any code of the process: (lookup pc, pc is not a return address) -> rule, or
None.
"""


@dataclass(frozen=True, slots=True)
class CodeScan:
    """The circumstances of one scan of a process for JIT code, such as its time and address space. Every source of code
    descriptions (CodeSource) gets it.

    Attributes:
        space: The address space.
        arch: Architecture of the process.
        before_ns: CLOCK_MONOTONIC time of the previous scan.
        now_ns: CLOCK_MONOTONIC time of this scan.
        symbols: (name, address in the process) of the registration lists in all modules.
        quick: The scan runs between batches of samples. A list whose header has not changed counts as unchanged.
    """

    space: AddressSpace
    arch: Arch
    before_ns: int
    now_ns: int
    symbols: Sequence[tuple[bytes, int]]
    quick: bool = False


class Descriptions(Protocol):
    """The protocol of the JIT code that one source describes, by address and time: a CodeMap or a CodeTable."""

    changes: list[int]

    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Span[Any]]: ...
    def find(self, pc: int, time_ns: int) -> Span[Any] | None: ...
    def first(self, pc: int) -> Span[Any] | None: ...
    def forget(self, before_ns: int) -> None: ...


class CodeSource(Protocol):
    """One source of descriptions of one process's JIT code, such as its perf map. No content that the process has
    written makes it raise.

    Attributes:
        label: Name of the source. The module of its code is "[jit] LABEL".
        in_memory: True if the source reads the process's memory, False if it reads files.
        spans: The described code, by address and time.
    """

    label: str
    in_memory: bool

    @property
    def spans(self) -> Descriptions: ...

    def update(self, scan: CodeScan) -> bool:
        """Read the current descriptions of the process's JIT code, and return True if unwind rules may have changed."""
        ...

    def rows(self, span: Span[Any], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        """Return the unwind rows that cover a lookup pc in a piece of JIT code, or None. Their addresses are those in
        the process.
        """
        ...

    def name(self, span: Span[Any]) -> CodeName | None: ...

    def image(self, span: Span[Any], space: AddressSpace) -> Image | None:
        """Return an object file in memory that describes a piece of JIT code (span), or None."""
        ...


Ranges = Sequence[tuple[int, int]]
"""Start and end addresses of parts of a process's memory."""


class ManagedRuntime(CodeSource, Protocol):
    """The protocol of a managed runtime whose code and frames are read from the process's memory.

    Attributes:
        reserved: Start and end of memory that the runtime makes executable as it needs it, (0, 0) if unknown.
        thread_names: Names that the program gave to its threads, by tid in the process's own pid namespace. Names of
            ended threads may be among them.
        is_open: The runtime runs in the process, and its description of itself was read.
        own_modules: File names of the modules whose native frames belong to the runtime itself. They are hidden in
            stacks that have functions of the program.
    """

    own_modules: frozenset[str]

    @property
    def is_open(self) -> bool: ...

    def is_entry(self, span: Span[Any], pc: int) -> bool:
        """Return True if the code at a lookup pc is only a stub through which native code calls functions of the
        program.
        """
        ...

    @property
    def thread_names(self) -> Mapping[int, str]: ...

    @property
    def reserved(self) -> tuple[int, int]: ...

    @property
    def code_ranges(self) -> Ranges:
        """Address ranges of mapped files whose code runs functions of the program, such as functions that are built
        into V8.
        """
        ...

    @property
    def stack_named(self) -> Ranges:
        """Address ranges of code that runs many functions, such as an interpreter. The stack copy of the sample tells
        which function a frame runs there.
        """
        ...

    def bind_frames(self, batch: SampleBatch, walk: Walk, lanes: I64, frames: I64) -> Sequence[Span[Any] | None]:
        """Return for each frame whose pc is in `stack_named` the description of the function that it runs, None if that
        is unknown.

        Args:
            batch: The samples.
            walk: The unwound frames of the samples.
            lanes: Sample of each frame, ascending.
            frames: Index of each frame in `walk`.
        """
        ...

    def read_ahead(self, space: AddressSpace, batch: SampleBatch) -> None:
        """Read the generated code on the stacks of a batch before the batch is unwound, because the process may end
        before that.
        """
        ...

    def load_all(self) -> None:
        """Read all generated code and its names, for inspection, if the runtime has a list of it."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimeKind:
    """A managed runtime that pyprof reads.

    Attributes:
        open: Creates the reader of the runtime in one process.
        symbols: Prefixes of the names of symbols that the reader needs.
        programs: Pattern of the names of files that contain the runtime, if code in such a file runs functions of the
            program. None if only JIT code does.
    """

    open: Callable[[Arch, Diagnostics], ManagedRuntime]
    symbols: tuple[bytes, ...]
    programs: re.Pattern[str] | None = None


class NoImage:
    """A base class for a CodeSource without object files: its image() returns None."""

    def image(self, span: Span[Any], space: AddressSpace) -> Image | None:
        return None


def report_problem(diagnostics: Diagnostics, label: str, found: Problem) -> None:
    """Report a problem in a process's descriptions of JIT code."""
    diagnostics.problem(module_path(label), found)


JIT = "[jit] "


def module_path(label: str) -> str:
    """Return the name of the module that a profile shows for the JIT code of a source, such as "[jit] perf map"."""
    return JIT + label
