"""The connection to a stub: the target's architecture, and objects for its control, memory and modules.

The target is stopped afterwards. If anything fails, the connection is closed and the target runs on.
"""

from __future__ import annotations

import contextlib
from typing import Literal

from pyprof.collectors.gdb.memory import RemoteMemory
from pyprof.collectors.gdb.modules import RemoteModules, StubImage, find_program
from pyprof.collectors.gdb.non_stop import NonStop
from pyprof.collectors.gdb.register_layout import (
    Register,
    RegisterMap,
    add_pac_mask,
    build_register_map,
    choose_arch,
    parse_description,
)
from pyprof.collectors.gdb.remote_serial import PacketLink
from pyprof.collectors.gdb.run_control import AllStop, Control, Stepping, await_first_stop, is_interrupt_ignored
from pyprof.collectors.gdb.stub import StopReply, Stub, ThreadId
from pyprof.collectors.gdb.target_files import RemoteFiles
from pyprof.diagnostics import Diagnostics
from pyprof.errors import ConnectionLost, RemoteError
from pyprof.model.arch import Arch, find_arch
from pyprof.options import RemoteOptions
from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """A target behind a GDB stub that is connected and stopped.

    Attributes:
        pid: The target's pid, 0 if the stub has no processes.
        path: Path of its program in the target.
        first: The thread that stopped first, or None if the stub named none.
        one_stops: True if only that thread is stopped (qemu-user).
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
        hold: True to keep the target stopped for all samples of one moment. False to stop it for each thread's sample.
        diagnostics: Counts problems.

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
        held = _SleepRows(link)
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
            program = modules.program = StubImage(modules.note_exec() or "/[program]", program.elf)
        files = RemoteFiles(stub, program.path, options.exe, options.sysroot, diagnostics)
        undo.pop_all()
        return RemoteTarget(
            pid, program.path, arch, registers, stub, control, memory, modules, files, thread, one_stops
        )


class _SleepRows:
    """A target of a GDB stub that the profiler has stopped; release_target() releases it."""

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
    """Return the architecture of a GDB stub's target, and the positions of its registers in the stub's packets."""
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
    """Return the architecture in the program's ELF header, which has the byte order, or None if the stub serves no
    files.
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
