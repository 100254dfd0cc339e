"""A compiled BPF object made ready for the kernel: its maps, its programs, and offsets of the kernel's structures.

The input is the ELF file that clang wrote (target bpf), the output are descriptors. This loader does what
libbpf does for objects of this kind. Maps are `struct map` in section `maps`. Constants of .rodata may be set
before the load. Each program has its section. Functions that programs call or pass as callbacks are in .text,
which is appended to each program.

Offsets of fields in the running kernel's structures come from the kernel's type information (/sys/kernel/btf/vmlinux).
Its 5 MB are searched for the structure's name and not parsed.
"""

from __future__ import annotations

import errno
import os
import re
import struct

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.linux import bpf_syscall
from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile.elf_file import ElfFile

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")
_MAP = struct.Struct("<5I")
_INSTRUCTION = struct.Struct("<BBhi")
_LD_IMM64, _CALL = 0x18, 0x85
_MAP_FD, _MAP_VALUE, _FUNCTION = 1, 2, 4
"""Values of src_reg in a BPF 64-bit load instruction: the kind of object that the loaded value refers to."""
_DATASEC, _VAR = 15, 14
_BTF_SIZES = {1: 4, 3: 12, 14: 4, 17: 4}
"""Number of bytes that follow the head of a BTF type and do not depend on vlen, by kind: INT, ARRAY, VAR, DECL_TAG."""
_BTF_VLEN = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Number of bytes for each member of a BTF type, by kind: STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC, ENUM64."""


_STATISTICS = re.compile(r"processed \d|verification time|stack depth|max_states|insn")


class ProgramRefused(CollectorRefused):
    """The error for a BPF program that the kernel refuses. `log` is the end of the log of the kernel's verifier."""

    def __init__(self, message: str, hint: str, log: str = "") -> None:
        super().__init__(message, hint)
        self.log = log


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class MapDefinition:
    """A BPF map as the object file defines it: type, key and value size in bytes, maximum number of entries, flags."""

    kind: int
    key_size: int
    value_size: int
    entries: int
    flags: int


class BpfObject:
    """A compiled BPF object file and its descriptors in the kernel.

    The caller must close it. The kernel removes the programs with the last descriptor.

    Attributes:
        definitions: Map definitions by name.
        constants: Contents of .rodata.
        maps: Descriptors of maps by name.
        programs: Descriptors of programs by name, after load().
    """

    def __init__(self, data: bytes, name: str) -> None:
        """Read the object file of a compiled BPF program.

        Raises:
            FormatError: The file is not a valid object.
        """
        self._elf = ElfFile.from_bytes(data, name)
        self._names = [section.name for section in self._elf.section_list]
        for section in ("maps", "license", ".rodata", ".symtab", ".strtab", ".BTF", ".BTF.ext"):
            if self._elf.section(section) is None:
                raise FormatError("BPF object", 0, f"no section {section}")
        self._symbols = self._read_symbols()
        self.definitions = self._read_maps()
        self.constants = bytearray(self._content(".rodata"))
        self.maps: dict[str, int] = {}
        self.programs: dict[str, int] = {}
        self._btf = -1

    def _content(self, name: str) -> bytes:
        return bytes(self._elf.section(name) or b"")

    def _read_symbols(self) -> list[_Symbol]:
        table, text = self._content(".symtab"), self._content(".strtab")
        found = []
        for name, _, _, section, value, size in _SYMBOL.iter_unpack(table[: len(table) // 24 * 24]):
            end = text.find(b"\0", name)
            found.append(_Symbol(text[name:end].decode("ascii", "replace"), section, value, size))
        return found

    def _read_maps(self) -> dict[str, MapDefinition]:
        data = self._content("maps")
        if "maps" not in self._names:
            return {}
        section = self._names.index("maps")
        return {
            symbol.name: MapDefinition(*_MAP.unpack_from(data, symbol.value))
            for symbol in self._symbols
            if symbol.section == section and symbol.size == _MAP.size
        }

    def set_constant(self, name: str, value: bytes) -> None:
        """Set a constant (.rodata) of the BPF program. It must be set before load()."""
        section = self._names.index(".rodata")
        for symbol in self._symbols:
            if symbol.name == name and symbol.section == section and symbol.size == len(value):
                self.constants[symbol.value : symbol.value + symbol.size] = value
                return
        raise KeyError(name)

    def set_entries(self, name: str, entries: int) -> None:
        """Set the number of entries of a BPF map, or the size of a ring buffer in bytes. It must be set
        before load().
        """
        old = self.definitions[name]
        self.definitions[name] = MapDefinition(old.kind, old.key_size, old.value_size, entries, old.flags)

    def load(self, kinds: dict[str, int], log_level: int = 0) -> dict[str, str]:
        """Load the maps, type information and programs of a BPF object into the kernel.

        Args:
            kinds: Program type by section.
            log_level: Level of the verifier's log.

        Returns:
            The verifier's logs by section, empty at log_level 0.

        Raises:
            ProgramRefused: The kernel refuses a part. Nothing remains loaded.
        """
        try:
            for name, entry in self.definitions.items():
                fd = bpf_syscall.create_map(
                    entry.kind, entry.key_size, entry.value_size, entry.entries, entry.flags, name
                )
                self.maps[name] = _taken(fd, f"the map {name}")
            if self.constants:
                fd = bpf_syscall.create_map(
                    bpf_syscall.ARRAY, 4, len(self.constants), 1, bpf_syscall.RDONLY_PROG, "rodata"
                )
                self.maps[".rodata"] = _taken(fd, "the map of constants")
                bpf_syscall.update_element(fd, bytes(4), bytes(self.constants))
                bpf_syscall.freeze_map(fd)
            self._btf, log = bpf_syscall.load_btf(self._filled_btf())
            _taken(self._btf, "type information", log)
            return {section: self._load(section, kind, log_level) for section, kind in kinds.items()}
        except BaseException:
            self.close()
            raise

    def _load(self, section: str, kind: int, log_level: int) -> str:
        place = self._names.index(section)
        (name,) = [symbol.name for symbol in self._symbols if symbol.section == place and symbol.size and symbol.name]
        code = self._linked(section)
        own = len(self._content(section)) // 8
        starts = dict(zip(self._parts(section), (0, own), strict=False))
        functions, function_size, lines, line_size = self._info(starts)
        licence = self._content("license")
        program = bpf_syscall.Program(
            kind, name, code, licence, self._btf, functions, function_size, lines, line_size
        )  # fmt: skip
        fd, log = bpf_syscall.load_program(program, log_level)
        self.programs[name] = _taken(fd, f"the program {name}", log)
        return log

    def _linked(self, section: str) -> bytes:
        """Return the BPF code of an ELF section with all relocations applied. If it calls functions in .text,
        .text follows it.
        """
        parts = self._parts(section)
        starts: dict[str, int] = {}
        code = bytearray()
        for part in parts:
            starts[part] = len(code)
            code += self._content(part)
        for part in parts:
            relocations = self._content(f".rel{part}")
            for at, info in _RELOCATION.iter_unpack(relocations[: len(relocations) // 16 * 16]):
                self._relocate(code, starts[part] + at, self._symbols[info >> 32], starts)
        return bytes(code)

    def _parts(self, section: str) -> list[str]:
        text = self._names.index(".text") if ".text" in self._names else -1
        relocations = self._content(f".rel{section}")
        used = {self._symbols[info >> 32].section for _, info in _RELOCATION.iter_unpack(relocations)}
        return [section, ".text"] if text in used else [section]

    def _relocate(self, code: bytearray, at: int, symbol: _Symbol, starts: dict[str, int]) -> None:
        op, registers, off, imm = _INSTRUCTION.unpack_from(code, at)
        target = self._names[symbol.section]
        if op == _LD_IMM64 and target == "maps":
            source, value, further = _MAP_FD, self.maps[symbol.name], 0
        elif op == _LD_IMM64 and target == ".rodata":
            source, value, further = _MAP_VALUE, self.maps[".rodata"], symbol.value + imm
        elif op == _LD_IMM64 and target == ".text":
            source, value, further = _FUNCTION, (starts[".text"] + symbol.value + imm - at) // 8 - 1, 0
        elif op == _CALL and target == ".text":
            called = starts[".text"] // 8 + symbol.value // 8 + imm + 1
            _INSTRUCTION.pack_into(code, at, op, registers, off, called - at // 8 - 1)
            return
        else:
            raise FormatError("relocation", at, f"of {symbol.name or target} by instruction {op:#x} is not known")
        _INSTRUCTION.pack_into(code, at, op, registers & 0xF | source << 4, off, value)
        struct.pack_into("<i", code, at + 12, further)

    def _filled_btf(self) -> bytes:
        """Return the object's BTF type information, completed with section sizes and the offsets of variables
        in their sections. The compiler leaves these to the loader.
        """
        data = bytearray(self._content(".BTF"))
        _, _, _, head, types, types_size, strings, _ = struct.unpack_from("<HBBIIIII", data, 0)
        strings += head

        def name_at(offset: int) -> str:
            return bytes(data[strings + offset : data.index(b"\0", strings + offset)]).decode("ascii", "replace")

        variables: list[str] = [""]
        at, end = head + types, head + types + types_size
        while at < end:
            name, info, _ = struct.unpack_from("<III", data, at)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            variables.append(name_at(name))
            if kind == _DATASEC:
                section = name_at(name)
                struct.pack_into("<I", data, at + 8, len(self._content(section)))
                for n in range(count):
                    entry = at + 12 + 12 * n
                    (variable,) = struct.unpack_from("<I", data, entry)
                    place = next(s.value for s in self._symbols if s.name == variables[variable])
                    struct.pack_into("<I", data, entry + 4, place)
            at += 12 + _BTF_SIZES.get(kind, 0) + _BTF_VLEN.get(kind, 0) * count
        return bytes(data)

    def _info(self, starts: dict[str, int]) -> tuple[bytes, int, bytes, int]:
        """Return the BTF information about functions and lines of linked BPF code, as the tuple (func_info,
        bytes of one of its records, line_info, bytes of one of its records).

        Args:
            starts: Index of the first instruction of each section in the linked code.
        """
        data = self._content(".BTF.ext")
        _, _, _, head, functions, functions_size, lines, lines_size = struct.unpack_from("<HBBIIIII", data, 0)
        first = self._records(data, head + functions, functions_size, starts)
        return (*first, *self._records(data, head + lines, lines_size, starts))

    def _records(self, data: bytes, at: int, size: int, starts: dict[str, int]) -> tuple[bytes, int]:
        btf = self._content(".BTF")
        _, _, _, head, _, _, strings, _ = struct.unpack_from("<HBBIIIII", btf, 0)
        (record,) = struct.unpack_from("<I", data, at)
        end, at = at + size, at + 4
        parts: dict[str, bytearray] = {}
        while at < end:
            name, count = struct.unpack_from("<II", data, at)
            at += 8
            offset = head + strings + name
            section = btf[offset : btf.index(b"\0", offset)].decode("ascii", "replace")
            if section in starts:
                rows = parts.setdefault(section, bytearray(data[at : at + count * record]))
                for n in range(count):
                    (place,) = struct.unpack_from("<I", rows, n * record)
                    struct.pack_into("<I", rows, n * record, place // 8 + starts[section])
            at += count * record
        return b"".join(bytes(parts.get(section, b"")) for section in starts), record

    def close(self) -> None:
        for fd in (*self.programs.values(), *self.maps.values(), self._btf):
            if fd >= 0:
                os.close(fd)
        self.programs.clear()
        self.maps.clear()
        self._btf = -1


def _taken(fd: int, what: str, log: str = "") -> int:
    if fd >= 0:
        return fd
    if -fd in (errno.EPERM, errno.EACCES) and not log:
        needs = "BPF needs root, or CAP_BPF and CAP_PERFMON, and nothing that forbids it (seccomp, lockdown)"
        raise ProgramRefused(f"The kernel refuses {what}: {needs}.", "sudo pyprof …")
    if -fd == errno.ENOSYS:
        raise ProgramRefused("This kernel has no BPF.", "--collector perf, or: --collector ptrace")
    if -fd == errno.EAGAIN:
        stops = "another profiler or a debugger stops pyprof too often while the kernel checks it"
        raise ProgramRefused(f"The kernel refuses {what}: {stops}.", "--collector perf needs none of it.")
    tail = "\n".join(log.splitlines()[-12:])
    message = f"The kernel refuses {what}: {os.strerror(-fd)}{_complaint(log)}."
    raise ProgramRefused(message, "--collector perf needs none of it.", tail)


def _complaint(log: str) -> str:
    """Return the last line of a BPF verifier's log, with the source line that it refers to, as the end of an
    error message. It is "" for an empty log.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _STATISTICS.match(line)]
    source = next((line.removeprefix(";").strip() for line in reversed(lines) if line.startswith(";")), "")
    return f"; its verifier says: {lines[-1]}{f' (at: {source})' if source else ''}" if lines else ""


_PATH = "/sys/kernel/btf/vmlinux"
_STRUCT = 4
_MAGIC = 0xEB9F
_MAX_MEMBERS = 1000

U32 = npt.NDArray[np.uint32]


def read_kernel_types() -> bytes:
    """Return the running kernel's BTF type information.

    Raises:
        OSError: The type information cannot be read.
    """
    with open(_PATH, "rb") as file:
        return file.read()


def find_member_offset(data: bytes, structure: str, member: str) -> int:
    """Return the offset of a member in a structure or in an anonymous structure inside it, in bytes.

    Args:
        data: The kernel's BTF type information.
        structure: Name of the structure.
        member: Name of the member.

    Raises:
        FormatError: There is no such member, or the data is not valid.
    """
    if len(data) < 24 or struct.unpack_from("<H", data)[0] != _MAGIC:
        raise FormatError("BTF", 0, "another magic number")
    head, types, types_size, strings, strings_size = struct.unpack_from("<5I", data, 4)
    if max(head + types + types_size // 4 * 4, head + strings + strings_size) > len(data):
        raise FormatError("BTF", head, "past the end")
    begin, end = head + strings, head + strings + strings_size
    words = np.frombuffer(data, "<u4", types_size // 4, head + types)  # no copies: the kernel has megabytes of both
    found = (data.find(f"\0{name}\0".encode(), begin, end) for name in (structure, member))
    wanted, field = (max(at + 1 - begin, 0) for at in found)
    for at in np.flatnonzero(words[:-2] == wanted).tolist():
        members = _members(words, at)
        if field in members:
            return members[field]
        inner = _around(words, field) if 0 in members else None
        if inner is not None and words[inner + 2] <= words[at + 2]:
            return members[0] + _members(words, inner)[field]
    raise FormatError("BTF", head, f"no {structure}.{member}")


def _members(words: U32, at: int) -> dict[int, int]:
    """Return {name: offset in bytes} of the members of the BTF structure at a word index, or {} if it is no
    structure.
    """
    count, kind, has_bits = int(words[at + 1]) & 0xFFFF, words[at + 1] >> 24 & 0x1F, words[at + 1] >> 31
    if kind != _STRUCT or at + 3 + 3 * count > len(words):
        return {}
    rows = words[at + 3 : at + 3 + 3 * count].reshape(count, 3).tolist()
    return {name: (bits & 0xFFFFFF if has_bits else bits) // 8 for name, _, bits in reversed(rows)}


def _around(words: U32, field: int) -> int | None:
    """Return the byte offset of the anonymous structure that contains the named member, or None if no
    anonymous structure in the kernel's BTF type information has it.
    """
    for found in np.flatnonzero(words == field).tolist():
        for place, at in enumerate(range(found - 3, max(found - 3 * _MAX_MEMBERS, -1), -3)):
            head = int(words[at + 1])
            if words[at] == 0 and head >> 24 & 0x1F == _STRUCT and head & 0xFFFF > place:
                return at
    return None
