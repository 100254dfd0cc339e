"""Samples of a target behind a stub of the GDB remote serial protocol: gdbserver, qemu, OpenOCD, J-Link.

What the stub is asked stands in gdb_stub, how the target is stopped in gdb_control, what is mapped in gdb_modules.
Whatever happens the target runs on: it is detached from, or continued, on every way out.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.gdb_batch import RemoteBatch
from pyprof.collectors.gdb_control import AllStop, Control, Stepping, first_stop, no_interrupt
from pyprof.collectors.gdb_files import RemoteFiles
from pyprof.collectors.gdb_link import ANSWER_S, Link
from pyprof.collectors.gdb_memory import RemoteMemory
from pyprof.collectors.gdb_modules import Program, RemoteModules, program_of
from pyprof.collectors.gdb_non_stop import NonStop
from pyprof.collectors.gdb_stub import StopReply, Stub, ThreadId
from pyprof.collectors.gdb_target import Register, choose_arch, parse_description, register_map, with_pac_mask
from pyprof.collectors.gdb_threads import RemoteThread, RemoteThreads
from pyprof.collectors.pace import Pace
from pyprof.diagnostics import Diagnostics
from pyprof.errors import ConnectionLost, FormatError, RemoteError
from pyprof.model.arch import Arch, find_arch
from pyprof.model.modules import AddressSpace, Mapping
from pyprof.model.pauses import Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import Piece, SampleBatch
from pyprof.objfile.elf import ElfFile
from pyprof.options import CollectOptions

_LOOK_SHARE = 10
_LEAST_LOOK_NS, _MOST_LOOK_NS = 20_000_000, 2_000_000_000
"""Looks at what is mapped take a tenth of the time, unless a pc says that something new is."""

_SIGN_OF_LIFE_NS = 200_000_000
_OTHER_SIZE = 16 << 10
_FIRST, _FIRST_OF_PROCESS = 4 << 10, 32 << 10
"""Bytes of the first copy of a stack: a microcontroller's is small, and its link slow."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """address: HOST:PORT. exe, sysroot: paths here, "" if not given. step: instructions between two samples, 0 for
    sampling by time. answer_s: how long a stub may be silent.
    """

    address: str
    exe: str = ""
    sysroot: str = ""
    step: int = 0
    answer_s: float = ANSWER_S


class GdbRemoteCollector:
    """Collector of one target. pid, name, path, arch: of the target, known once it is made.

    Raises ConnectionLost, RemoteError, NotTraceable, UnsupportedArchitecture, UsageError; the stub is let go of then.
    """

    def __init__(self, remote: RemoteOptions, options: CollectOptions, diagnostics: Diagnostics) -> None:
        self._remote = remote
        self._options = options
        self._diagnostics = diagnostics
        self._stopping = False
        self._closed = False
        self._ticks = self._ticking_ns = 0
        self._notes: list[str] = []
        self._space: AddressSpace | None = None
        self._looked_ns = self._look_ns = 0
        self._infos: dict[int, ThreadInfo] = {}
        self._control: Control | None = None
        self._files: RemoteFiles | None = None
        self._pace = Pace(options.rate_hz, options.max_overhead, time.monotonic_ns(), random.random)
        self._link = Link.connect(remote.address, remote.answer_s)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        stub = self._stub = Stub(self._link)
        stub.begin()
        non_stop = self._is_timed and {"t", "c"} <= stub.actions and stub.has("QNonStop")
        if stub.has("QNonStop"):  # gdbserver stays as its last debugger left it
            non_stop = self._link.ask(b"QNonStop:%d" % non_stop) == b"OK" and non_stop
        stop = first_stop(stub)
        thread = stop.thread if stop is not None else None
        thread = thread or stub.current_thread() or next(iter(stub.thread_ids()), None)
        self.pid = thread.pid if thread is not None else 0
        self._first = thread
        self._one_stops = no_interrupt(stub)
        self._control = self._choose_control(stop if non_stop else None, non_stop)
        program = program_of(stub, self.pid, self._remote.exe or None)
        if thread is not None:
            stub.select(thread)  # gdbserver describes the selected thread, and aborts if there is none
        description = parse_description(self._description_file)
        arch = choose_arch(description, _arch_of(program.elf) or self._arch_of_target_file(program.path))
        self._map = register_map(description, arch)
        if thread is not None and description is not None:
            arch = with_pac_mask(arch, self._pac_mask(thread, description.registers()))
        self.arch = arch
        self._memory = RemoteMemory(stub, arch.mask)
        self._memory.reachable = self._control.reachable
        self._modules = RemoteModules(stub, arch, self.pid, self._memory, program)
        if not program.path:
            program = self._modules.program = Program(self._modules.executed() or "/[program]", program.elf)
        self.path = program.path
        self.name = program.path.rsplit("/", 1)[-1]
        self._files = RemoteFiles(stub, program.path, self._remote.exe, self._remote.sysroot, self._diagnostics)
        first = _FIRST_OF_PROCESS if self._modules.is_process else _FIRST
        self._threads = RemoteThreads(stub, self.pid, self._options.stack_size, first)
        self._batch = RemoteBatch(arch, self.pid, self._map.unknown)
        if self._control.note:
            self._notes.append(self._control.note)

    def _choose_control(self, stop: StopReply | None, non_stop: bool) -> Control:
        if self._remote.step:
            return Stepping(self._stub, self.pid, self._remote.step)
        if non_stop:
            return NonStop(self._stub, self.pid, stop)
        hold = not self._options.flush_s
        control = AllStop(self._stub, self.pid, hold)
        if not hold and self._one_stops:
            self._control = control
            raise RemoteError(
                f"the stub at {self._remote.address} is qemu-user's: it cannot be interrupted while its program runs",
                "--step N takes samples by single-stepping instead, one each N instructions",
            )
        return control

    def _description_file(self, name: str) -> bytes | None:
        return self._stub.object("features", name) if self._stub.has("qXfer:features:read") else None

    def _arch_of_target_file(self, path: str) -> Arch | None:
        """Byte order from the program's header, where the stub serves files."""
        fd = self._stub.open_file(path) if path.startswith("/") else None
        if fd is None:
            return None
        try:
            head = self._stub.read_file(fd, 0, 20)
        finally:
            self._stub.close_file(fd)
        if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] not in (1, 2):
            return None
        order = "little" if head[5] == 1 else "big"
        machine = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
        return find_arch(machine, 64 if head[4] == 2 else 32, order)

    def _pac_mask(self, thread: ThreadId, registers: dict[str, Register]) -> int:
        place = registers.get("pauth_cmask")
        if place is None or not self._stub.select(thread):
            return 0
        try:
            return int.from_bytes(bytes.fromhex(self._stub.register(place.number).decode("ascii")), "little")
        except ValueError:
            return 0

    def batches(self) -> Iterator[SampleBatch]:
        """The first sample is taken while the target still stands as the connection left it."""
        control = self._control
        assert control is not None
        flush_ns = round(self._options.flush_s * 1e9)
        try:
            self._tick(control)
            control.go()
            yield self._batch.take()
            flushed = time.monotonic_ns()
            while not self._stopping and not control.ended:
                if self._wait(control, flushed + max(flush_ns, _SIGN_OF_LIFE_NS)):
                    self._tick(control)
                now = time.monotonic_ns()
                if now - flushed >= flush_ns or self._batch.full:
                    flushed = now
                    yield self._batch.take()
        except (ConnectionLost, RemoteError) as error:
            if not self._ticks:
                raise
            self._stopping = True
            self._notes.append(f"the recording ended early: {error.message}" + (f" {error.hint}" if error.hint else ""))
            self._diagnostics.count("connection to the stub ended early")
        if len(self._batch):
            yield self._batch.take()

    def _wait(self, control: Control, alive_ns: int) -> bool:
        """Until the next sampling time; False where a sign of life is due first, or it is time to stop."""
        if not control.paced:
            control.rest(0, self._is_stopping)
            return not (self._stopping or control.ended)
        due = self._pace.next_due(time.monotonic_ns()) if self._due_ns is None else self._due_ns
        self._due_ns = due
        control.rest(min(due, alive_ns), self._is_stopping)
        if self._stopping or control.ended or time.monotonic_ns() < due:
            return False
        self._due_ns = None
        return True

    _due_ns: int | None = None

    def _is_stopping(self) -> bool:
        return self._stopping

    def _tick(self, control: Control) -> None:
        """One sample of each thread."""
        before = control.pauses.snapshot().total_ns
        with contextlib.closing(control.looks(self._list)) as still:
            for thread_id in still:
                self._sample(thread_id)
                if self._batch.full:
                    break
        self._ticks += 1
        self._ticking_ns = time.monotonic_ns() - self._pace.start_ns
        self._pace.stopped(control.pauses.snapshot().total_ns - before)

    @property
    def _is_timed(self) -> bool:
        """Samples at points in time, not all threads at one moment, not by instructions."""
        return bool(self._options.flush_s) and not self._remote.step

    def _list(self) -> list[ThreadId]:
        """The threads worth a stop."""
        self._threads.refresh()
        self._look()
        threads = list(self._threads.all.values())
        if self._one_stops:
            return [thread.id for thread in self._standing(threads)]
        if self._threads.states():
            if not self._options.idle:
                threads = [t for t in threads if t.state == "R" or not t.state]
        elif self._is_timed and not self._options.idle and not self._ticks:
            self._notes.append("the stub does not say which threads run: sleeping ones are sampled too")
        return [thread.id for thread in threads]

    def _standing(self, threads: list[RemoteThread]) -> list[RemoteThread]:
        """qemu-user's stub stops one thread; the others run on while it tells their registers."""
        stepped = self._control.stepped if isinstance(self._control, Stepping) else None
        standing = stepped or self._first
        if standing is None:
            return threads
        if len(threads) > 1 and not self._told:
            self._told = True
            others = len(threads) - 1
            self._notes.append(f"qemu-user stops one thread only: the others ({others}), which run on, were left out")
        return [thread for thread in threads if thread.id.tid == standing.tid]

    _told = False

    def _look(self, force: bool = False) -> None:
        """What is mapped, now and then."""
        now = time.monotonic_ns()
        if self._space is not None and not force and now < self._look_ns:
            return
        try:
            mappings = self._modules.look()
        except FormatError as error:
            raise RemoteError(f"what the stub says of the target's mappings is broken: {error.message}") from None
        self._looked_ns = time.monotonic_ns()
        pause = min(max(_LOOK_SHARE * (self._looked_ns - now), _LEAST_LOOK_NS), _MOST_LOOK_NS)
        self._look_ns = self._looked_ns + pause
        if self._space is not None and mappings == self._space.mappings:
            return
        self._new_space(mappings)

    def _new_space(self, mappings: tuple[Mapping, ...]) -> None:
        assert self._files is not None
        number = self._space.id + 1 if self._space is not None else 1
        self._memory.forget()
        # pid 0: no process of this machine
        self._space = AddressSpace(
            number,
            0,
            number,
            mappings,
            self._memory.read,
            self._remote.sysroot,
            self._files.find,
            complete=self._modules.is_complete,
        )
        self._files.fetch_missing(mappings, self._memory.read)
        for mapping in mappings:
            if mapping.executable and mapping.inode:
                self._memory.read(mapping.start, 1)  # its first page proves the file: read now, not by a stop later

    def _sample(self, thread_id: ThreadId) -> None:
        thread = self._threads.all.get(thread_id.text)
        packet = self._stub.registers(thread_id) if thread is not None else None
        if thread is None or packet is None:
            self._threads.gone(thread_id)
            self._diagnostics.count("thread ended while it was looked at")
            return
        at_ns = time.monotonic_ns()
        values = self._map.values(packet, self._stub.register)
        pc, sp = values[self.arch.pc], values[self.arch.sp]
        assert self._space is not None
        around = self._space.mapping_at(sp)
        base, size = thread.reach.span(sp, around.end if around is not None else 0)
        stack = self._memory.fresh(base, size)
        thread.reach.came(base, len(stack), size)
        pieces = []
        if thread.other[1]:
            pieces.append(Piece(thread.other[0], self._memory.fresh(*thread.other)))
        if self._space.mapping_at(pc) is None and time.monotonic_ns() - self._looked_ns > 20_000_000:
            self._look(force=True)
        self._batch.add(at_ns, thread_id.tid, self._space, self._pace.weight, values, base, stack, pieces)
        if not thread.known or thread.name != self._infos[thread_id.tid].name:
            thread.known = True
            self._infos[thread_id.tid] = ThreadInfo(self.pid, thread_id.tid, thread.name or self.name, self.name)

    def learn(self, feedback: Feedback) -> None:
        batch = feedback.batch
        by_tid: dict[int, RemoteThread] = {thread.id.tid: thread for thread in self._threads.all.values()}
        rows = zip(
            batch.tid.tolist(),
            batch.stack.base.tolist(),
            feedback.top.tolist(),
            feedback.missing.tolist(),
            strict=True,
        )
        for tid, base, top, missing in rows:
            thread = by_tid.get(tid)
            if thread is None:
                continue
            if missing and not base <= missing <= base + self._options.stack_size:
                start, size = thread.other
                grown = 2 * size if start <= missing <= start + 2 * size else _OTHER_SIZE
                thread.other = (start if grown > _OTHER_SIZE else missing & -8, min(grown, self._options.stack_size))
            else:
                thread.reach.learn(base, top, missing)
                if not missing and thread.other[1] and not batch.stack.pieces:
                    thread.other = (0, 0)

    def threads(self) -> list[ThreadInfo]:
        return [self._infos[tid] for tid in sorted(self._infos)]

    def states(self) -> dict[int, str]:
        """tid -> what the thread was doing, in words."""
        words = {"R": "running", "S": "sleeping", "D": "disk sleep"}
        threads = list(self._threads.all.values())
        if self._one_stops:
            threads = self._standing(threads)
        return {t.id.tid: words.get(t.state, "halted") for t in threads}

    def stats(self) -> CollectorStats:
        return CollectorStats(
            ticks=self._ticks,
            ticking_ns=self._ticking_ns,
            pauses=self._control.pauses.snapshot() if self._control is not None else Pauses(),
            skipped=self._pace.skipped if self._control is not None and self._control.paced else 0,
            unchanged=0,
            blocked=0,
            errors={},
            notes=(*self._notes, *self._pace.notes),
        )

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        """Let the target run on and hang up. Never raises."""
        if self._closed:
            return
        self._closed = self._stopping = True
        if self._control is not None:
            with contextlib.suppress(ConnectionLost, RemoteError):
                self._control.leave()
        elif hasattr(self, "_stub"):
            with contextlib.suppress(ConnectionLost, RemoteError):
                self._link.ask(b"D")
        if hasattr(self, "_memory"):
            self._memory.closed = True
        if self._files is not None:
            self._files.close()
        self._link.close()


def _arch_of(elf: ElfFile | None) -> Arch | None:
    return find_arch(elf.machine, elf.elf_class, elf.byteorder) if elf is not None else None
