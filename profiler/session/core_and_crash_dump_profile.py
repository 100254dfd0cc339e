"""Profiles of a dead process, from a core file, a minidump or a microdump.

The worker parses, unwinds and resolves names, as in a recording (session/worker/). There is no sampler, because all
data is in files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from pyprof.collectors.postmortem.core_process import CoreFileProcess
from pyprof.collectors.postmortem.crash_dump_process import DumpedProcess, looks_like_dump
from pyprof.collectors.postmortem.saved_thread_collector import SavedThreads
from pyprof.errors import FormatError, PyprofError
from pyprof.interpreters.detection_symbols import KnownSymbols, read_symbols
from pyprof.interpreters.goroutines import GoroutineFinder
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets
from pyprof.model.profile import Profile
from pyprof.model.thread_stacks import ThreadStack, leave_out_system, thread_stacks
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.objfile.minidump_content import DumpException, DumpModule
from pyprof.objfile.untrusted_file_access import debuginfod_cache
from pyprof.options import DeadTarget, is_confined
from pyprof.problem_counters import Diagnostics
from pyprof.session.goroutine_stacks import GoroutineStacks
from pyprof.session.session import Session
from pyprof.session.worker.file_broker import AnyObjectFile, KnownFiles, KnownFolder
from pyprof.session.worker.worker_client import Examiner
from pyprof.session.worker.worker_process import Start

Registers = dict[int, list[dict[str, int]]]
"""Type of the known registers of all frames: by tid a list of frames, innermost first, each with its register values by
register name.
"""


@dataclass(frozen=True, slots=True)
class StatedCrash:
    """The facts about a crash that a minidump states in addition to its threads.

    Attributes:
        system: Name of the operating system, "" if it is unknown.
        version: Version of the operating system.
        exception: The exception, None if there was none.
        modules: The modules that the dump lists.
    """

    system: str
    version: str
    exception: DumpException | None
    modules: tuple[DumpModule, ...]


@dataclass(frozen=True, slots=True)
class PostMortem:
    """A dead process, with the threads and files of its core file or crash dump.

    Attributes:
        pid: Pid of the process.
        exe: Path of the program as stated in the file.
        arch: Name of the architecture.
        profile: One sample of each thread.
        states: State of each thread, by tid.
        order: Tids, beginning with the thread that crashed.
        signal: (number, si_code, address) from a core file, None if no signal killed the process.
        crash: Facts from a minidump, None for a core file.
        registers: Registers of all frames, empty if they were not requested.
    """

    pid: int
    exe: str
    arch: str
    profile: Profile
    states: dict[int, str]
    order: tuple[int, ...]
    signal: tuple[int, int, int | None] | None
    crash: StatedCrash | None
    registers: Registers

    @property
    def threads(self) -> tuple[ThreadStack, ...]:
        place = {tid: at for at, tid in enumerate(self.order)}
        stacks = leave_out_system(list(thread_stacks(self.profile, self.states)))
        return tuple(sorted(stacks, key=lambda thread: place.get(thread.tid, 0)))


def examined(target: DeadTarget, start: Start) -> PostMortem:
    """Read a core file or crash dump in a worker, and unwind its threads.

    Args:
        target: The file and the options.
        start: Starts the worker.

    Raises:
        UnsupportedArchitecture: The process has an unknown architecture.
        UsageError: An option is invalid.
        WorkerDied: The worker has ended.
        PyprofError: The file is missing or invalid.
    """
    with Examiner(start, is_confined(target.sandbox, target.unwind.symbols)) as examiner:
        examiner.notify(KnownFiles(tuple(filter(None, (target.path, target.exe)))))
        examiner.notify(AnyObjectFile())
        for folder in filter(None, (target.sysroot.rstrip("/"), debuginfod_cache())):
            examiner.notify(KnownFolder(folder))
        return examiner.one(_OfDeadProcess(target), PostMortem)


@dataclass(frozen=True, slots=True)
class _OfDeadProcess:
    """The one-shot task for a worker that reads and unwinds a dead process (see messages.OneShotTask)."""

    target: DeadTarget

    def pieces(self, diagnostics: Diagnostics) -> Iterator[PostMortem]:
        """Read and unwind the dead process in the worker, and yield the single result.

        Raises:
            UnsupportedArchitecture: The process has an unknown architecture.
            UsageError: An option is invalid.
            PyprofError: The file is missing or invalid.
        """
        yield (_of_minidump if self.target.is_minidump else _of_core)(self.target, diagnostics)


def _of_core(target: DeadTarget, diagnostics: Diagnostics) -> PostMortem:
    path = target.path
    try:
        process = CoreFileProcess(path, target.exe, target.sysroot, target.stack_size, diagnostics)
    except FormatError as error:
        if looks_like_dump(path):
            raise PyprofError(f"{path}: not a core file", f"pyprof dump --minidump {path}") from error
        hint = "--core takes a core file: coredumpctl dump PID -o core"
        raise PyprofError(f"{path}: {error.message}", hint) from error
    goroutines = _find_goroutines(process.space)
    if goroutines is not None:
        process.saved.find_goroutines(goroutines)
    states, order = dict.fromkeys(process.order, "stopped"), list(process.order)
    if process.crashed and process.order:
        states[process.order[0]] = "crashed"
    if target.goroutines:
        waiting = GoroutineStacks(
            process.space, process.arch, partial(read_symbols, ImageStore(Diagnostics())), diagnostics
        )
        process.saved.add_threads(waiting.saved_threads(), waiting.infos(os.path.basename(process.exe)))
        states |= waiting.states()
        order += waiting.goroutines
    profile, registers = _unwound(target, process, diagnostics)
    return PostMortem(
        pid=process.pid,
        exe=process.exe,
        arch=process.arch.name,
        profile=profile,
        states=states,
        order=tuple(order),
        signal=process.crashed,
        crash=None,
        registers=registers,
    )


def _find_goroutines(space: AddressSpace) -> GoroutineOffsets | None:
    """Return the offsets of the Go runtime in a core file's process, or None if it has none."""
    return GoroutineFinder(KnownSymbols(partial(read_symbols, ImageStore(Diagnostics())))).find_offsets(space)


def _of_minidump(target: DeadTarget, diagnostics: Diagnostics) -> PostMortem:
    path = target.path
    try:
        process = DumpedProcess(path, target.exe, target.sysroot, target.stack_size, diagnostics)
    except FormatError as error:
        hint = "--minidump takes a minidump or the log with a microdump"
        raise PyprofError(f"{path}: {error.problem}", hint) from error
    dump = process.dump
    profile, registers = _unwound(target, process, diagnostics)
    return PostMortem(
        pid=process.pid,
        exe=process.exe,
        arch=process.arch.name,
        profile=profile,
        states=process.states,
        order=tuple(process.order),
        signal=None,
        crash=StatedCrash(dump.os, dump.version, process.crashed, tuple(dump.modules)),
        registers=registers,
    )


def _unwound(
    target: DeadTarget, process: CoreFileProcess | DumpedProcess, diagnostics: Diagnostics
) -> tuple[Profile, Registers]:
    session = Session(process.saved, target.unwind, diagnostics)
    window = session.run(process.saved)
    if session.failure is not None:
        raise session.failure
    profile = session.profile(window, process.exe, 1.0, mode="wall")
    return profile, _registers(session, process.saved, process.arch.registers) if target.registers else {}


def _registers(session: Session, saved: SavedThreads, names: Sequence[str]) -> Registers:
    found: Registers = {}
    for batch in saved.sample_again():
        for tid, frames in zip(batch.tid.tolist(), session.unwinder.registers(batch), strict=True):
            found[tid] = [_known(names, values) for values in frames]
    return found


def _known(names: Sequence[str], values: Sequence[int | None]) -> dict[str, int]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
