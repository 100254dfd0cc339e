"""The registers of a stub's target: their positions in a `g` packet, and the architecture that they belong to.

They come from target.xml and the files that it includes (GDB manual, "Target Descriptions"), by register name. Without
it GDB's default layout is used for the architecture of the program's file.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.gdb.stub import parse_xml
from pyprof.errors import RemoteError, UnsupportedArchitecture
from pyprof.model.arch import ARCHES, Arch
from pyprof.records import dataclass, field, replace

MAX_REGISTERS = 4096
_MAX_FILES = 64
_MAX_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a GDB stub's target: its number for `p`, and its offset and size in the `g` packet in bytes."""

    name: str
    number: int
    offset: int
    size: int


@dataclass
class Description:
    """The contents of a GDB target description (target.xml); `architecture` is BFD's name or ""."""

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
        fetch: Returns a file by its name ("target.xml" first), or None.

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
"""Architecture names in target.xml that begin like a supported one but mean unsupported code."""
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

    The program's file decides the byte order, which no description states.

    Args:
        description: The target description, if there is one.
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
    """Return the architecture with the longest name (Arch.bfd) that the GDB target's architecture name begins with."""
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
    """The GDB stub's register for each column of the architecture, None if the stub does not have it."""

    arch: Arch
    places: tuple[Register | None, ...]

    @property
    def unknown(self) -> frozenset[int]:
        """The columns of the architecture for which the GDB stub has no register."""
        return frozenset(column for column, place in enumerate(self.places) if place is None)

    def read_values(self, packet: bytes, single: Callable[[int], bytes]) -> list[int]:
        """Return the values of all register columns from a `g` reply, 0 for unavailable registers.

        Args:
            packet: The reply.
            single: Reads a register that the reply does not include, by `p`.

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
    """Return the map of registers of a GDB target description, or of GDB's default layout.

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
    """Return the architecture with the signature bits that the target's kernel reports (pauth_cmask)."""
    return replace(arch, pac_mask=mask) if arch.pac_mask and mask else arch
