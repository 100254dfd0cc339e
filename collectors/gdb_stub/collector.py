"""A collector for a target behind a stub of the GDB remote serial protocol, and its connection to the stub.

Stubs are gdbserver, qemu, OpenOCD and J-Link. A stub stops the target when a debugger connects. If anything
fails, the connection is closed and the target runs on.

stub_requests.py has the requests, run_control.py stops the target, target_modules.py reads
mappings. On every way out the target is detached or continued, so that it runs on.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Literal

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import BatchBuilder, BytesMemory, Lane, split_at_flushes
from pyprof.collectors.gdb_stub.remote_serial import PacketLink
from pyprof.collectors.gdb_stub.run_control import (
    AllStop,
    Control,
    NonStop,
    Stepping,
    await_first_stop,
    is_interrupt_ignored,
)
from pyprof.collectors.gdb_stub.stub_requests import RemoteMemory, StopReply, Stub, ThreadId
from pyprof.collectors.gdb_stub.target_modules import RemoteFiles, RemoteModules, RemoteSpaces, StubImage, find_program
from pyprof.collectors.gdb_stub.threads_and_registers import (
    Register,
    RegisterMap,
    RemoteThread,
    RemoteThreads,
    add_pac_mask,
    build_register_map,
    choose_arch,
    parse_description,
)
from pyprof.collectors.sampling_clock import SamplingClock
from pyprof.errors import ConnectionLost, RemoteError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch, find_arch
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind
from pyprof.options import CollectOptions, RemoteOptions
from pyprof.problem_counters import Diagnostics


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """A target behind a GDB stub that is connected and stopped.

    Attributes:
        pid: The target's pid, 0 if the stub has no processes.
        path: Path of its program in the target's file system.
        first: The thread that was stopped when the connection was made, or None if the stub named none.
        one_stops: True if only `first` is stopped and the other threads run on (qemu-user).
    """

    pid: int
    path: str
    arch: Arch
    registers: RegisterMap
    stub: Stub
    control: Control
    memory: RemoteMemory
    modules: RemoteModules
    files: RemoteFiles
    first: ThreadId | None
    one_stops: bool

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    def release_target(self) -> None:
        """Let the GDB stub's target run on and close the connection. This never raises, and may be called twice."""
        if self.memory.closed:
            return
        with contextlib.suppress(ConnectionLost, RemoteError):
            self.control.release_target()
        self.memory.closed = True
        self.files.close()
        self.stub.link.close()


def connect_target(options: RemoteOptions, hold: bool, diagnostics: Diagnostics) -> RemoteTarget:
    """Connect to a GDB stub and learn its target's architecture, memory and threads.

    Args:
        options: Address and options of the connection.
        hold: True to keep the target stopped for all samples (a dump). False to stop it only while samples
            are taken.
        diagnostics: Counters of problems.

    Raises:
        ConnectionLost: The stub does not answer.
        RemoteError: The stub's answers are not usable.
        NotTraceable: The stub has no target.
        UnsupportedArchitecture: The target's architecture is not supported.
        UsageError: The address is not valid.
    """
    with contextlib.ExitStack() as undo:
        link = PacketLink.connect(options.address, options.answer_s)
        undo.callback(link.close)
        stub = Stub(link)
        held = _StoppedTarget(link)
        undo.callback(held.leave)
        stub.negotiate_features()
        non_stop = not hold and not options.step and {"t", "c"} <= stub.actions and stub.has_feature("QNonStop")
        if stub.has_feature("QNonStop"):  # gdbserver keeps the mode of its last debugger
            non_stop = link.request(b"QNonStop:%d" % non_stop) == b"OK" and non_stop
        stop = await_first_stop(stub)
        thread = stop.thread if stop is not None else None
        thread = thread or stub.read_current_thread() or next(iter(stub.list_threads()), None)
        pid = thread.pid if thread is not None else 0
        one_stops = is_interrupt_ignored(stub)
        control = _control(options, stub, pid, stop if non_stop else None, non_stop, hold)
        held.control = control
        if one_stops and isinstance(control, AllStop) and not hold:
            raise RemoteError(
                f"the stub at {options.address} is qemu-user's: it cannot be interrupted while its program runs",
                "--step N takes samples by single-stepping instead, one each N instructions",
            )
        program = find_program(stub, pid, options.exe or None)
        arch, registers = _registers(stub, thread, program)
        memory = RemoteMemory(stub, arch.mask)
        memory.reachable = control.make_memory_readable
        modules = RemoteModules(stub, arch, pid, memory, program)
        if not program.path:
            program = modules.program = StubImage(modules.program_path() or "/[program]", program.elf)
        files = RemoteFiles(stub, program.path, options.exe, options.sysroot, diagnostics)
        undo.pop_all()
        return RemoteTarget(
            pid, program.path, arch, registers, stub, control, memory, modules, files, thread, one_stops
        )


class _StoppedTarget:
    """A guard for the time in which a connection is being made to a GDB stub, whose target is stopped.
    leave() lets the target run on if a step fails.
    """

    def __init__(self, link: PacketLink) -> None:
        self._link = link
        self.control: Control | None = None

    def leave(self) -> None:
        with contextlib.suppress(ConnectionLost, RemoteError):
            if self.control is not None:
                self.control.release_target()
            else:
                self._link.request(b"D")


def _control(
    options: RemoteOptions, stub: Stub, pid: int, stop: StopReply | None, non_stop: bool, hold: bool
) -> Control:
    if options.step:
        return Stepping(stub, pid, options.step)
    if non_stop:
        return NonStop(stub, pid, stop)
    return AllStop(stub, pid, hold)


def _registers(stub: Stub, thread: ThreadId | None, program: StubImage) -> tuple[Arch, RegisterMap]:
    """Return the architecture of a GDB stub's target, and the positions of its registers in the stub's `g` packets."""
    if thread is not None:
        stub.select_thread(thread)  # gdbserver describes the selected thread, and aborts if there is none

    def file(name: str) -> bytes | None:
        return stub.read_object("features", name) if stub.has_feature("qXfer:features:read") else None

    description = parse_description(file)
    elf = program.elf
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder) if elf is not None else None
    arch = choose_arch(description, arch or _arch_of_target_file(stub, program.path))
    registers = build_register_map(description, arch)
    if thread is not None and description is not None:
        arch = add_pac_mask(arch, _pac_mask(stub, thread, description.registers()))
    return arch, registers


def _arch_of_target_file(stub: Stub, path: str) -> Arch | None:
    """Return the architecture, with its byte order, from the ELF header of the target's program. Return None
    if the stub serves no files.
    """
    fd = stub.open_file(path) if path.startswith("/") else None
    if fd is None:
        return None
    try:
        head = stub.read_file(fd, 0, 20)
    finally:
        stub.close_file(fd)
    if len(head) < 20 or head[:4] != b"\x7fELF" or head[5] not in (1, 2):
        return None
    order: Literal["little", "big"] = "little" if head[5] == 1 else "big"
    return find_arch(int.from_bytes(head[18:20], order), 64 if head[4] == 2 else 32, order)


def _pac_mask(stub: Stub, thread: ThreadId, registers: dict[str, Register]) -> int:
    place = registers.get("pauth_cmask")
    if place is None or not stub.select_thread(thread):
        return 0
    try:
        return int.from_bytes(bytes.fromhex(stub.read_register(place.number).decode("ascii")), "little")
    except ValueError:
        return 0


_SIGN_OF_LIFE_NS = 200_000_000
_OTHER_SIZE = 16 << 10
_SOURCE = 1
_MAX_BYTES = 64 << 20
_FIRST, _FIRST_OF_PROCESS = 4 << 10, 32 << 10
"""Number of stack bytes in the first copy of a thread's stack, for a target without an operating system and
for a process. The stack of a microcontroller is small, and its link slow.
"""


class GdbRemoteCollector:
    """A collector that samples one target behind a GDB stub. If its creation fails, the stub is released.

    Raises:
        ConnectionLost: The stub does not answer.
        RemoteError: The stub's answers are not usable.
        NotTraceable: The stub has no target.
        UnsupportedArchitecture: The target's architecture is not supported.
        UsageError: The address is not valid.
    """

    def __init__(self, remote: RemoteOptions, options: CollectOptions, diagnostics: Diagnostics) -> None:
        self._options = options
        self._diagnostics = diagnostics
        self._timed = bool(options.flush_s) and not remote.step
        self._stopping = False
        self._ticks = self._ticking_ns = 0
        self._due_ns: int | None = None
        self._infos: dict[int, ThreadInfo] = {}
        self._clock = SamplingClock(options.rate_hz, options.max_overhead, time.monotonic_ns(), random.random)
        self._target = target = connect_target(remote, not options.flush_s, diagnostics)
        self._spaces = RemoteSpaces(target.modules, target.memory, target.files, remote.sysroot)
        first = _FIRST_OF_PROCESS if target.modules.is_process else _FIRST
        self._threads = RemoteThreads(target.stub, target.pid, options.stack_size, first)
        self._batch = BatchBuilder([target.arch], BytesMemory(_MAX_BYTES), _SOURCE, target.registers.unknown)
        self._notes = {"control": target.control.note} if target.control.note is not None else {}

    @property
    def pid(self) -> int:
        """The pid of the GDB stub's target, 0 if the stub has no processes."""
        return self._target.pid

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def path(self) -> str:
        """Path of the program in the target's file system."""
        return self._target.path

    @property
    def arch(self) -> Arch:
        return self._target.arch

    def batches(self) -> Iterator[SampleBatch]:
        """Yield batches of samples. The first sample is taken while the target is still stopped because of
        the connection.
        """
        control = self._target.control
        flush_ns, handover = round(self._options.flush_s * 1e9), self._options.handover
        try:
            self._tick(control)
            control.start_target()
            yield from self._batch.take_batches()
            flushed = time.monotonic_ns()
            while not self._stopping and not control.ended:
                alive_ns = flushed + max(flush_ns, _SIGN_OF_LIFE_NS)
                if self._wait(control, min(alive_ns, handover.next_ns)):
                    self._tick(control)
                now = time.monotonic_ns()
                if now - flushed >= flush_ns or self._batch.full or now >= handover.next_ns:
                    flushed = now
                    yield from split_at_flushes(handover, self._batch.take_batches(), now)
        except (ConnectionLost, RemoteError) as error:
            if not self._ticks:
                raise
            self._stopping = True
            self._notes["lost"] = make_note("stub_lost_early", why=f"{error.message} {error.hint}".strip())
            self._diagnostics.count("stub_connection_ended")
        yield from split_at_flushes(handover, self._batch.take_batches(), handover.ended_ns or time.monotonic_ns())

    def _wait(self, control: Control, alive_ns: int) -> bool:
        """Wait until the next sampling time. Return False if a flush or an empty batch is due first, or if
        sampling ends.
        """
        if not control.paced:
            control.run_until(0, self._is_stopping)
            return not (self._stopping or control.ended)
        due = self._clock.next_due(time.monotonic_ns()) if self._due_ns is None else self._due_ns
        self._due_ns = due
        control.run_until(min(due, alive_ns), self._is_stopping)
        if self._stopping or control.ended or time.monotonic_ns() < due:
            return False
        self._due_ns = None
        return True

    def _is_stopping(self) -> bool:
        return self._stopping

    def _tick(self, control: Control) -> None:
        """Take one sample of each thread of the GDB stub's target."""
        before = control.pauses.snapshot().total_ns
        with contextlib.closing(control.stopped_threads(self._list)) as still:
            for thread_id in still:
                self._sample(thread_id)
                if self._batch.full:
                    break
        self._ticks += 1
        self._ticking_ns = time.monotonic_ns() - self._clock.start_ns
        self._clock.note_pause(control.pauses.snapshot().total_ns - before)

    def _list(self) -> list[ThreadId]:
        """Return the threads of the GDB stub's target to sample now, while the target is stopped."""
        self._threads.refresh()
        self._spaces.refresh_space()
        threads = list(self._threads.all.values())
        if self._target.one_stops:
            return [thread.id for thread in self._standing(threads)]
        if self._threads.describe_states():
            if not self._options.idle:
                threads = [t for t in threads if t.is_busy or not t.state]
        elif self._timed and not self._options.idle and not self._ticks:
            self._notes["states"] = make_note("stub_states_unknown")
        return [thread.id for thread in threads]

    def _standing(self, threads: list[RemoteThread]) -> list[RemoteThread]:
        """Return those of the threads that are really stopped while the GDB stub reads registers.

        The stub of qemu-user stops only one thread. The others continue to run.
        """
        control = self._target.control
        stepped = control.stepped if isinstance(control, Stepping) else None
        standing = stepped or self._target.first
        if standing is None:
            return threads
        if len(threads) > 1:
            self._notes.setdefault("one thread", make_note("stub_one_thread", others=len(threads) - 1))
        return [thread for thread in threads if thread.id.tid == standing.tid]

    def _sample(self, thread_id: ThreadId) -> None:
        target = self._target
        thread = self._threads.all.get(thread_id.text)
        packet = target.stub.read_registers(thread_id) if thread is not None else None
        if thread is None or packet is None:
            self._threads.note_ended(thread_id)
            self._diagnostics.count("thread_ended")
            return
        at_ns = time.monotonic_ns()
        values = target.registers.read_values(packet, target.stub.read_register)
        known = self._spaces.current
        around = known.mapping_at(values[target.arch.sp]) if known is not None else None
        base, size = thread.reach.choose_span(values[target.arch.sp], around.end if around is not None else 0)
        stack = target.memory.read_current(base, size)
        thread.reach.note_readable(base, len(stack), size)
        pieces = []
        if thread.other[1]:
            pieces.append(Piece(thread.other[0], target.memory.read_current(*thread.other)))
        space = self._spaces.find_space(values[target.arch.pc])
        self._batch.memory.append_copy(stack)
        made = Lane(target.arch, SampleKind.STOPPED, at_ns, target.pid, thread_id.tid, space, self._clock.weight)
        lane = self._batch.add_sample(made, base, len(stack))
        self._batch.set_registers(lane, values)
        if pieces:
            self._batch.add_pieces(lane, pieces)
        if not thread.has_stored_name or thread.name != self._infos[thread_id.tid].name:
            thread.has_stored_name = True
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
        """Return the state of each thread of the GDB stub's target in words, by tid."""
        words = {"R": "running", "S": "sleeping", "D": "disk sleep"}
        threads = list(self._threads.all.values())
        if self._target.one_stops:
            threads = self._standing(threads)
        return {t.id.tid: words.get(t.state, "halted") for t in threads}

    def retire(self) -> None:
        """Ignore the call: threads of a GDB stub are never forgotten, because only their names are stored."""

    def stats(self) -> CollectorStats:
        control = self._target.control
        return CollectorStats(
            ticks=self._ticks,
            ticking_ns=self._ticking_ns,
            pauses=control.pauses.snapshot(),
            skipped=self._clock.skipped if control.paced else 0,
            notes=(*self._notes.values(), *self._clock.notes),
        )

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        """Let the GDB stub's target run on and close the connection. This never raises."""
        self._stopping = True
        self._target.release_target()
