"""The threads of a GDB stub's target, and the layout of their registers in packets.

The positions of registers in a `g` packet, and the architecture that they belong to, come from target.xml and
the files that it includes (GDB manual, "Target Descriptions"), by register name. Without target.xml GDB's
default layout is used for the architecture of the program's file.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyprof.collectors.gdb_stub.stub_requests import MAX_THREADS, Stub, ThreadId, parse_xml
from pyprof.collectors.linux.procfs import parse_stat
from pyprof.errors import FormatError, RemoteError, UnsupportedArchitecture
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.arch import ARCHES, Arch

RED_ZONE = 128
_MAX_AT_FIRST = 64 << 10
_SLACK = 256
_GROWTH = 4096
_LIST_S = 0.2


@dataclass(slots=True)
class StackReach:
    """The choice of how much of one thread's stack a sample copies: up to the highest address that an earlier
    walk has used.

    Attributes:
        most: Maximum size of a copy in bytes (--stack-size).
        first: Size in bytes of the first copy if the end of the stack is unknown.
        top: Highest address that a walk has used.
        limit: End of the readable memory, if a copy was shorter than requested.
    """

    most: int
    first: int
    top: int = 0
    limit: int = 0

    def choose_span(self, sp: int, end: int) -> tuple[int, int]:
        """Return (avma, size in bytes) of the stack copy to make. `end` is the end of the mapping that
        contains sp, 0 if that is unknown.
        """
        base = max(sp - RED_ZONE, 0) & ~7
        if base < self.top <= base + self.most:
            size = min(self.top + _SLACK - base, self.most)
        else:
            size = min(max(self.first, min(end - base, _MAX_AT_FIRST)), self.most)
        if base < self.limit <= base + self.most:
            size = min(size, self.limit - base)
        return base, size

    def note_readable(self, base: int, size: int, wanted: int) -> None:
        """Note that `size` of the `wanted` bytes of a thread's stack from `base` on were readable."""
        if size < wanted:
            self.limit = base + size

    def learn(self, base: int, top: int, missing: int) -> None:
        """Note how much of the stack the walk of a copy at `base` has used, which decides the size of the
        next copy. See Feedback for `top` and `missing`.
        """
        known = self.top if base < self.top <= base + self.most else 0  # 0: a value of another stack
        if base <= missing <= base + self.most:
            self.top = max(known, missing + max(_GROWTH, missing - base))
        elif base < top <= base + self.most:
            self.top = max(known, top)


@dataclass(slots=True)
class RemoteThread:
    """The state of a thread of a GDB stub's target.

    Attributes:
        id: The thread's id.
        reach: The choice of how much of its stack is copied.
        name: The thread's name.
        state: Letter of its state in /proc, "" if it is unknown.
        stat: Descriptor of /proc/PID/task/TID/stat in the stub, -1 if there is none.
        came_with: Its processor time in clock ticks when it was first seen.
        other: (avma, size in bytes) of further memory to copy, which the last walk lacked: the stack that a
            signal handler on an alternate stack interrupted.
        has_stored_name: True if the collector has its name.
    """

    id: ThreadId
    reach: StackReach
    name: str = ""
    state: str = ""
    stat: int = -1
    came_with: int | None = None
    is_busy: bool = False
    """True if the thread runs and has used processor time since it was first seen. A thread that was only
    woken by a stop has used none.
    """
    other: tuple[int, int] = (0, 0)
    has_stored_name: bool = False


class RemoteThreads:
    """The list of threads of a GDB stub's target. It is read repeatedly, because the stub does not report the
    start of a thread.
    """

    def __init__(self, stub: Stub, pid: int, stack_size: int, first: int) -> None:
        """Create an empty list of threads; `first` is the size of the first copy of a stack in bytes."""
        self._stub = stub
        self._pid = pid
        self._stack_size = stack_size
        self._first = first
        self._asked_ns = 0
        self._has_stat = True
        self.all: dict[str, RemoteThread] = {}

    def refresh(self, force: bool = False) -> None:
        """Read the list of threads from the GDB stub if the last reading is too old. The stub must accept
        requests.

        Raises:
            RemoteError: The stub's answers are not usable.
        """
        now = time.monotonic_ns()
        if not force and now - self._asked_ns < _LIST_S * 1e9:
            return
        self._asked_ns = now
        names = self._names() if self._stub.has_feature("qXfer:threads:read") else None
        if names is None:
            names = dict.fromkeys(self._stub.list_threads(), "")
        if not names:
            current = self._stub.read_current_thread() or ThreadId("1", 0, 1)
            names = {current: ""}
        kept: dict[str, RemoteThread] = {}
        for thread, name in names.items():
            if self._stub.multiprocess and thread.pid != self._pid:
                continue
            known = self.all.pop(thread.text, None) or RemoteThread(thread, StackReach(self._stack_size, self._first))
            known.name = name or known.name
            kept[thread.text] = known
        for gone in self.all.values():
            if gone.stat >= 0:
                self._stub.close_file(gone.stat)
        self.all = kept

    def _names(self) -> dict[ThreadId, str] | None:
        text = self._stub.read_object("threads")
        if text is None:
            return None
        found: dict[ThreadId, str] = {}

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "thread":
                if len(found) >= MAX_THREADS:
                    raise RemoteError("the stub's list of threads has no end")
                found[ThreadId.parse(attributes["id"])] = attributes.get("name", "")[:100]

        parse_xml("list of threads", text, start)
        return found

    def describe_states(self) -> bool:
        """Read the state of each thread of the GDB stub's target from the target's /proc, without a stop.
        Return False if that is not available.
        """
        if not self._has_stat or not self._pid:
            return False
        for thread in self.all.values():
            if thread.stat < 0:
                fd = self._stub.open_file(f"/proc/{self._pid}/task/{thread.id.tid}/stat")
                if fd is None:
                    self._has_stat = any(other.stat >= 0 for other in self.all.values())
                    thread.state = ""
                    continue
                thread.stat = fd
            try:
                stat = parse_stat(self._stub.read_file(thread.stat, 0, 512))
            except FormatError:
                thread.state = ""
                continue
            if thread.came_with is None:
                thread.came_with = stat.worked
            thread.state, thread.is_busy = stat.state, stat.state == "R" and stat.worked > thread.came_with
        return self._has_stat

    def note_ended(self, thread: ThreadId) -> None:
        self.all.pop(thread.text, None)


MAX_REGISTERS = 4096
_MAX_FILES = 64
_MAX_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a GDB stub's target: `number` for the packet `p`, and offset and size in the `g` packet
    in bytes.
    """

    name: str
    number: int
    offset: int
    size: int


@dataclass
class Description:
    """The contents of a GDB target description (target.xml). `architecture` is its name in BFD's notation, or ""."""

    architecture: str = ""
    features: list[str] = field(default_factory=list)
    bits: dict[int, tuple[str, int]] = field(default_factory=dict)

    def registers(self) -> dict[str, Register]:
        """Return the registers of a GDB target description by name, laid out in order of their numbers."""
        found: dict[str, Register] = {}
        offset = 0
        for number in sorted(self.bits):
            name, bits = self.bits[number]
            found.setdefault(name, Register(name, number, offset, bits // 8))
            offset += bits // 8
        return found


def parse_description(fetch: Callable[[str], bytes | None]) -> Description | None:
    """Parse a GDB target description (target.xml), or return None if there is none.

    Args:
        fetch: Function that returns a file of the description by its name ("target.xml" first), or None.

    Raises:
        RemoteError: The description is not valid.
    """
    found = Description()
    seen: set[str] = set()

    def read(name: str, text: bytes) -> None:
        seen.add(name)
        words: list[str] = []
        next_number = 0 if not found.bits else max(found.bits) + 1

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal next_number
            tag = tag.rpartition(":")[2]
            words.clear()
            if tag == "include":
                href = attributes.get("href", "")
                if href in seen or len(seen) >= _MAX_FILES:
                    raise RemoteError("the stub's target description includes itself")
                more = fetch(href)
                if more is not None:
                    read(href, more)
                    next_number = max(next_number, max(found.bits, default=-1) + 1)
            elif tag == "feature":
                found.features.append(attributes.get("name", ""))
            elif tag == "reg":
                number = int(attributes.get("regnum", next_number))
                bits = int(attributes["bitsize"])
                if not (0 <= number < 1 << 20 and 0 < bits <= _MAX_BITS) or len(found.bits) >= MAX_REGISTERS:
                    raise RemoteError("the stub's target description has an impossible register")
                found.bits[number] = (attributes["name"], bits)
                next_number = number + 1

        def end(tag: str) -> None:
            if tag == "architecture":
                found.architecture = "".join(words).strip()

        def text_in(piece: str) -> None:
            if len(words) < 8:
                words.append(piece[:100])

        parse_xml(f"target description {name[:40]}", text, start, end, text_in)

    text = fetch("target.xml")
    if text is None:
        return None
    read("target.xml", text)
    return found


_ALIASES = {"i686": "i386", "iwmmxt": "arm", "xscale": "arm"}
_OTHERS = ("aarch64:ilp32",)
"""Architecture names in target.xml that begin like the name of a supported architecture but mean unsupported code."""
_BIG = ("powerpc",)
"""Architecture names in target.xml that mean big-endian code, which is unsupported unless the program's file states
otherwise.
"""
_FEATURES = {
    "org.gnu.gdb.arm.core": "arm",
    "org.gnu.gdb.arm.m-profile": "arm",
    "org.gnu.gdb.aarch64.core": "aarch64",
    "org.gnu.gdb.s390.core": "s390:64-bit",
}


def choose_arch(description: Description | None, elf: Arch | None) -> Arch:
    """Return the architecture of a GDB stub's target.

    The program's file decides the byte order, which no target description states.

    Args:
        description: The target description, None if the stub has none.
        elf: Architecture of the program's file, or None if no file is known.

    Raises:
        UnsupportedArchitecture: The architecture is not supported.
        RemoteError: There is neither a description nor a file.
    """
    name = _architecture_name(description) if description is not None else ""
    if name:
        arch = _named(name, elf)
        if arch is None:
            raise UnsupportedArchitecture(f"the target is {name[:60]}: no rules for it")
        return arch
    if elf is None:
        raise RemoteError("the stub does not describe its target", "name the program's file: --exe FILE")
    return elf


def _named(name: str, elf: Arch | None) -> Arch | None:
    """Return the supported architecture for an architecture name of a GDB target: the one whose BFD name
    (Arch.bfd) is the longest beginning of the name.
    """
    name = next((ours for alias, ours in _ALIASES.items() if name.startswith(alias)), name)
    if name.startswith(_OTHERS):
        return None
    found = [arch for arch in ARCHES.values() if arch.bfd and name.startswith(arch.bfd)]
    longest = max((len(arch.bfd) for arch in found), default=0)
    found = [arch for arch in found if len(arch.bfd) == longest]
    same = [arch for arch in found if elf is not None and arch.name == elf.name]
    return next(iter(same or (() if name.startswith(_BIG) else found)), None)


def _architecture_name(description: Description) -> str:
    if description.architecture:
        return description.architecture
    for feature in description.features:
        if feature in _FEATURES:
            return _FEATURES[feature]
    names = {name for name, _ in description.bits.values()}
    return "i386:x86-64" if "rip" in names else "i386" if "eip" in names else ""


_OTHER_NAMES = {"pc": ("pswa",), "lr": ("r14",), "sp": ("r13",)}


@dataclass(frozen=True)
class RegisterMap:
    """The GDB stub's register for each register column of an architecture, None for registers that the stub lacks."""

    arch: Arch
    places: tuple[Register | None, ...]

    @property
    def unknown(self) -> frozenset[int]:
        """The register columns of the architecture for which the GDB stub has no register."""
        return frozenset(column for column, place in enumerate(self.places) if place is None)

    def read_values(self, packet: bytes, single: Callable[[int], bytes]) -> list[int]:
        """Return the values of all register columns from the stub's reply to a `g` packet, 0 for unavailable
        registers.

        Args:
            packet: The reply.
            single: Function that reads a register which the reply lacks, by the packet `p`.

        Raises:
            RemoteError: pc or sp is not available.
        """
        arch = self.arch
        values = [0] * len(self.places)
        for column, place in enumerate(self.places):
            if place is None:
                continue
            digits = packet[2 * place.offset : 2 * (place.offset + place.size)]
            if len(digits) < 2 * place.size:
                digits = single(place.number)[: 2 * place.size]
            try:
                data = bytes.fromhex(digits.decode("ascii"))
            except ValueError:
                data = b""
            if len(data) == place.size:
                values[column] = int.from_bytes(data, "big" if arch.byteorder == "big" else "little") & (1 << 64) - 1
            elif column in (arch.pc, arch.sp):
                raise RemoteError(f"the stub's registers have no {place.name}")
        values[arch.pc] = arch.code_address(values[arch.pc] & arch.mask)
        return values


def build_register_map(description: Description | None, arch: Arch) -> RegisterMap:
    """Return the map from register columns to the registers of a GDB target description, or of GDB's default
    layout if there is none.

    Raises:
        RemoteError: The description lacks pc or sp.
    """
    if description is not None and description.bits:
        registers = description.registers()
    else:
        registers, offset = {}, 0
        for number, (name, size) in enumerate(arch.gdb_packet):
            registers[name] = Register(name, number, offset, size)
            offset += size
    places: list[Register | None] = []
    for name in arch.registers:
        found = registers.get(name)
        for other in _OTHER_NAMES.get(name, ()) if found is None else ():
            found = found or registers.get(other)
        places.append(found)
    if places[arch.pc] is None or places[arch.sp] is None:
        raise RemoteError("the stub's target description lacks the program counter or the stack pointer")
    return RegisterMap(arch, tuple(places))


def add_pac_mask(arch: Arch, mask: int) -> Arch:
    """Return the architecture with the mask of the bits that contain pointer signatures, as the target's
    kernel reports it (pauth_cmask).
    """
    return replace(arch, pac_mask=mask) if arch.pac_mask and mask else arch
