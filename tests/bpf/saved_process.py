"""A core file of a CPython process, as input for the BPF program and for the ptrace reader."""

from __future__ import annotations

import resource
import signal
import struct
import subprocess
from functools import cached_property
from pathlib import Path

from pyprof.collectors.bpf import ring_buffer_records
from pyprof.collectors.bpf.kernel_program import pack_offsets
from pyprof.collectors.bpf.recorded_processes import build_frame_rows
from pyprof.collectors.postmortem.core_process import CoreFileProcess
from pyprof.interpreters.base import InterpreterContext
from pyprof.interpreters.cpython.bpf_frame_decoder import PythonInKernel
from pyprof.interpreters.cpython.detection import CPythonFileCache
from pyprof.interpreters.cpython.object_reader import Memory, make_gather
from pyprof.interpreters.cpython.process_reader import PythonProcess
from pyprof.interpreters.detection_symbols import KnownSymbols, read_symbols
from pyprof.interpreters.function_table import FunctionTable
from pyprof.model.interpreter_frames import Chain
from pyprof.model.interpreter_reader_protocols import FrameOffsets
from pyprof.objfile.core_file import AT_EXECFN, CoreMemory, SavedRange, read_notes
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_sections import PF_X
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from tests.bpf.user_space import Ran, UserSpace
from tests.core.making import kernel_writes_here
from tests.support import missing, need

SP = 7
_FS_BASE = 8 * 21
"""Offset of fs_base in struct user_regs_struct, in bytes."""


def core_of(process: subprocess.Popen[str], folder: Path) -> Path:
    """Write a core file of the process, which ends it, and return the path.

    The kernel writes the core into the folder if core_pattern permits; otherwise gdb writes it.
    """
    if not kernel_writes_here():
        return _core_by_gdb(process.pid, folder / "core")
    resource.prlimit(process.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    process.send_signal(signal.SIGABRT)
    process.wait(60)
    (core,) = folder.glob("core*")
    return core


def _core_by_gdb(pid: int, path: Path) -> Path:
    command = [need("gdb"), "-nx", "-batch", "-p", str(pid), "-ex", f"generate-core-file {path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert path.exists(), done.stdout + done.stderr
    if "Memory read failed" in done.stderr:
        missing(
            "needs a kernel that writes cores (sysctl kernel.core_pattern=core): gdb reads no stack with a guard page"
        )
    return path


class SavedProcess:
    """A CPython process in a core file, readable by both readers.

    Attributes:
        tids: Ids of its threads.
        pointers: Thread pointer (fs_base) of each thread.
        process: The ptrace collector's reader of interpreter frames.
        kernel: The reader of the BPF program's rows. Both readers share one code book, so that equal functions have
            equal numbers.
    """

    def __init__(self, core: Path, sysroot: str = "") -> None:
        self.book = FunctionTable()
        diagnostics = Diagnostics()
        saved = CoreFileProcess(str(core), "", sysroot, 1 << 14, diagnostics)
        self.pid, self.space = saved.pid, saved.space
        file = ElfFile.open(str(core))
        notes = read_notes(file)
        self.memory, self.auxv = CoreMemory(file), notes.auxv
        self.pointers = {
            thread.tid: struct.unpack_from("<Q", thread.registers, _FS_BASE)[0] for thread in notes.threads
        }
        self.rows = {thread.tid: thread.row for thread in saved.saved.saved}
        symbols = KnownSymbols(lambda *asked: read_symbols(ImageStore(diagnostics), *asked))
        context = InterpreterContext(symbols, diagnostics, self.book, follow_tasks=True)
        self.process = PythonProcess(context, CPythonFileCache(symbols), int)
        self.kernel = PythonInKernel(self.process, diagnostics)
        self.process.inspect_process(self.space, self.tids)
        self.needs = self.kernel.inspect_process(self.space, self.tids)

    @property
    def tids(self) -> list[int]:
        return list(self.rows)

    @cached_property
    def offsets(self) -> tuple[int, FrameOffsets]:
        found = self.kernel.offsets()
        assert found is not None, self.process.refusal
        return found

    @property
    def first_stack(self) -> SavedRange:
        """Return the mapping that contains the main thread's stack."""
        found = self.memory.region_at(self.auxv[AT_EXECFN])
        assert found is not None
        return found

    def registers(self, tid: int) -> list[int]:
        return [int(word) for word in self.rows[tid]]

    def stack(self, tid: int) -> tuple[int, bytes]:
        """Return the thread's sp and the stack from sp up to the thread pointer or to the end of the mapping."""
        sp, top = self.registers(tid)[SP] & ~7, self.pointers[tid]
        region = self.memory.region_at(sp)
        assert region is not None
        return sp, self.memory.read(sp, (top if sp < top < region.end else region.end) - sp)

    def stop(self, tid: int) -> Chain | None:
        """Return the frames that a ptrace stop of the thread finds.

        The second stop is used because it can read ahead.
        """
        sp, data = self.stack(tid)
        words = memoryview(data[: len(data) & ~7]).cast("Q")
        gather = make_gather(Memory(self.space.read))
        for _ in range(2):
            self.process.copy(tid, words, sp, gather)
            self.process.learn()
        return self.process.take_chain()

    def in_user_space(self, placed: bool, absent: int = 1 << 64) -> UserSpace:
        """Return the BPF program in user space with the memory and map entries for sampling this process.

        Args:
            placed: Whether the program has the addresses of thread states and the end of the main stack, as for threads
                that exist before it starts.
            absent: First address of the main stack that cannot be read.
        """
        said = UserSpace()
        for region in self.memory.regions:
            data = self.memory.read(region.start, region.stored_end - region.start)
            if not data and not region.flags & PF_X:
                data = self.space.read(region.start, region.end - region.start)
            said.memory(region.start, region.end, data[: absent - region.start] if region == self.first_stack else data)
        runtime, offsets = self.offsets
        said.entry("layouts", 0, pack_offsets(offsets))
        said.entry("processes", self.pid, ring_buffer_records.PROCESS.pack(runtime, *(0,) * 11))
        said.constant("seeks_waiting", 1)
        said.constant("follows_tasks", 1)
        for place in self.kernel.places() if placed else ():
            end = self.first_stack.end if place.tid == self.pid else 0
            said.entry(
                "threads", place.tid, ring_buffer_records.THREAD.pack(end, place.address, place.gil, place.collecting)
            )
        return said

    def sample(self, said: UserSpace, tid: int) -> None:
        """Let the BPF program sample a thread."""
        said.setting("pointer", self.pointers[tid])
        said.sample(self.pid, tid, self.registers(tid))

    def chain(self, ran: Ran) -> Chain | None:
        """Return the frames in the rows of the only record."""
        record = ran.record
        (found,) = self.kernel.chains(build_frame_rows(record, record.texts, ran.words))
        return found

    def names(self, chain: Chain) -> list[list[object]]:
        """Return [function, line] of each frame from leaf to root."""
        lines = [self.book.line(place) for run in chain.runs for place in run.frames]
        return [[line.function, line.line] for line in lines]
