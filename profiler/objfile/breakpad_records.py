"""Parsers of the records of a Breakpad symbol file, and the identifiers of its module.

A record is one line. The parsers raise ValueError for an invalid record. Addresses are relative to the module's load
address. Text that is not UTF-8 is escaped.
Source: docs/symbol_files.md of Breakpad; for the forms of INLINE, src/processor/basic_source_line_resolver.cc.

The identifier of a module is its build ID as a GUID, or a hash of its code. Source: src/common/linux/file_id.cc and
src/common/module.cc of Breakpad.
"""

from __future__ import annotations

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import StatedId
from pyprof.model.arch import find_arch
from pyprof.objfile.base import ObjectFile

MAX_NUMBER = 1 << 64


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """A MODULE record of a Breakpad symbol file.

    Attributes:
        os: "Linux", "windows" or "mac".
        arch: "x86_64", "arm64" and so on.
        id: GUID and age in hex, as in the file.
        name: Name of the module.
    """

    os: str
    arch: str
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class FuncRecord:
    """A FUNC record of a Breakpad symbol file, or a PUBLIC record with size 0.

    Attributes:
        address: First address.
        size: Size in bytes.
        parameters: Size in bytes of the arguments on the stack.
        name: Name of the function.
        multiple: The linker folded functions with other names into this function.
    """

    address: int
    size: int
    parameters: int
    name: str
    multiple: bool


@dataclass(frozen=True, slots=True)
class LineRecord:
    """A source line record of a Breakpad symbol file. `file` is the number of a FILE record."""

    address: int
    size: int
    line: int
    file: int


@dataclass(frozen=True, slots=True)
class InlineRecord:
    """An INLINE record of a Breakpad symbol file: a call that was inlined.

    Attributes:
        depth: Inlining depth, 0 in the FUNC itself.
        line: Line of the call.
        file: Number of the FILE of the call, -1 if it is unknown, None in the old form, which does not state it.
        origin: Number of the INLINE_ORIGIN.
        ranges: (start, end) ranges of the inlined code; the end is excluded.
    """

    depth: int
    line: int
    file: int | None
    origin: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class WinRecord:
    """A STACK WIN record of a Breakpad symbol file. Sizes are in bytes.

    Attributes:
        type: 4 for frame data, 0 for FPO.
        address: First address of the code.
        size: Size of the code.
        prologue: Size of the prologue.
        epilogue: Size of the epilogue.
        parameters: Size of the arguments on the stack.
        saved: Size of the saved registers.
        locals: Size of the local variables.
        program: Program that computes the caller's registers, "" if the record has none.
        allocates_base_pointer: Without a program: the function uses ebp for other purposes and saves it.
    """

    type: int
    address: int
    size: int
    prologue: int
    epilogue: int
    parameters: int
    saved: int
    locals: int
    program: str
    allocates_base_pointer: bool


def decode_text(field: bytes) -> str:
    return field.decode("utf-8", "backslashreplace")


def parse_number(field: bytes, base: int = 16) -> int:
    """Parse an unsigned number of a Breakpad record.

    Raises:
        ValueError: The field has a sign, a prefix or an underscore, which int() would accept, or exceeds 64 bits.
    """
    if not field.isalnum() or field[1:2] in (b"x", b"X"):
        raise ValueError(field)
    value = int(field, base)
    if value >= MAX_NUMBER:
        raise ValueError(field)
    return value


def parse_signed(field: bytes) -> int:
    return -parse_number(field[1:], 10) if field.startswith(b"-") else parse_number(field, 10)


def parse_module(line: bytes) -> ModuleRecord:
    fields = line.split(None, 4)
    if len(fields) < 4 or fields[0] != b"MODULE":
        raise ValueError(line)
    parse_number(fields[3][:16])
    if len(fields[3]) > 64:
        raise ValueError(line)
    return ModuleRecord(
        decode_text(fields[1]),
        decode_text(fields[2]),
        decode_text(fields[3]),
        decode_text(fields[4]) if len(fields) > 4 else "",
    )


def parse_func(line: bytes) -> FuncRecord:
    """Parse the Breakpad record "FUNC [m] address size parameter_size name"."""
    fields = line.split(None, 1)[1:]
    multiple = bool(fields) and fields[0].startswith(b"m ")
    fields = fields[0][2 * multiple :].split(None, 3) if fields else []
    if len(fields) < 3:
        raise ValueError(line)
    name = decode_text(fields[3]) if len(fields) > 3 else ""
    return FuncRecord(parse_number(fields[0]), parse_number(fields[1]), parse_number(fields[2]), name, multiple)


def parse_public(line: bytes) -> FuncRecord:
    """Parse the Breakpad record "PUBLIC [m] address parameter_size name"."""
    fields = line.split(None, 1)[1:]
    multiple = bool(fields) and fields[0].startswith(b"m ")
    fields = fields[0][2 * multiple :].split(None, 2) if fields else []
    if len(fields) < 2:
        raise ValueError(line)
    return FuncRecord(
        parse_number(fields[0]), 0, parse_number(fields[1]), decode_text(fields[2]) if len(fields) > 2 else "", multiple
    )


def parse_line(line: bytes) -> LineRecord:
    """Parse the Breakpad line record "address size line file". Further fields are ignored, as in Breakpad."""
    fields = line.split(None, 4)
    if len(fields) < 4:
        raise ValueError(line)
    address, size, source_line, file = fields[:4]
    return LineRecord(parse_number(address), parse_number(size), parse_number(source_line, 10), parse_number(file, 10))


def parse_inline(line: bytes) -> InlineRecord:
    """Parse the Breakpad record "INLINE depth call_line [call_file] origin (address size)+".

    The number of fields tells the two forms apart.
    """
    fields = line.split()[1:]
    if len(fields) < 5:
        raise ValueError(line)
    file = parse_signed(fields[2]) if len(fields) % 2 == 0 else None
    at = 2 if file is None else 3
    ranges = []
    for place in range(at + 1, len(fields), 2):
        start = parse_number(fields[place])
        ranges.append((start, start + parse_number(fields[place + 1])))
    return InlineRecord(
        parse_number(fields[0], 10), parse_number(fields[1], 10), file, parse_number(fields[at], 10), tuple(ranges)
    )


def parse_file(line: bytes) -> str:
    """Parse the Breakpad record "FILE number name"."""
    return decode_text(line.split(None, 2)[2])


def parse_origin(line: bytes) -> tuple[str, int | None]:
    """Parse the Breakpad record "INLINE_ORIGIN id [file] name".

    Returns:
        (name, number of the function's FILE). The number is None in the new form, which does not have it.
    """
    name = line.split(None, 2)[2]
    first, _, rest = name.partition(b" ")
    if rest and first.removeprefix(b"-").isdigit():
        return decode_text(rest), int(first)
    return decode_text(name), None


def parse_rules(rules: bytes) -> dict[str, str]:
    """Parse the rules "name: expression name: expression ..." of a STACK CFI record and return the postfix expressions
    by register name.
    """
    found: dict[str, list[str]] = {}
    words: list[str] | None = None
    for word in decode_text(rules).split():
        if word.endswith(":") and len(word) > 1:
            words = found[word[:-1]] = []
        elif words is None:
            raise ValueError(rules)
        else:
            words.append(word)
    if not found or not all(found.values()):
        raise ValueError(rules)
    return {name: " ".join(expression) for name, expression in found.items()}


def parse_win(line: bytes) -> WinRecord:
    """Parse a STACK WIN record of a Breakpad symbol file.

    Its fields: type rva size prologue epilogue parameters saved locals max_stack has_program program_or_flag.
    """
    fields = line.split(None, 12)[2:]
    if len(fields) < 11:
        raise ValueError(line)
    kind, rva, size, prologue, epilogue, parameters, saved, local, _, has_program = map(parse_number, fields[:10])
    program = decode_text(fields[10]).strip() if has_program else ""
    flag = not has_program and parse_number(fields[10].strip()) != 0
    return WinRecord(kind, rva, size, prologue, epilogue, parameters, saved, local, program, flag)


GUID_SIZE = 16
HASHED = 4096
"""Number of bytes of .text that are hashed for a Breakpad identifier if there is no build ID."""


def breakpad_id(file: ObjectFile) -> str:
    """Return a file's Breakpad identifier: 33 upper-case hex digits (a GUID and the age 0), "" if the file has neither
    a build ID nor a .text.

    For a missing file, the identifier is the one that a crash dump or the module's memory states.
    """
    if file.debug_id:
        return file.debug_id
    identifier = bytes.fromhex(file.build_id)[:GUID_SIZE] if file.build_id else hash_text(file)
    if not identifier:
        return ""
    return format_guid(identifier, file.byteorder) + "0"


def format_guid(identifier: bytes, byteorder: str) -> str:
    """Return the first 16 bytes of an identifier as the hex digits of a GUID.

    Args:
        identifier: The bytes of the identifier; shorter ones are padded with zeros.
        byteorder: Byte order of the target, "little" or "big".
    """
    identifier = identifier[:GUID_SIZE].ljust(GUID_SIZE, b"\0")
    if byteorder == "little":
        identifier = identifier[3::-1] + identifier[5:3:-1] + identifier[7:5:-1] + identifier[8:]
    return identifier.hex().upper()


def hash_text(file: ObjectFile) -> bytes:
    """Return the XOR of the first 4096 bytes of .text in blocks of 16 bytes; b"" if there is no .text.

    The last block is read completely, past the end of a short .text, as dump_syms does.
    """
    section = next((s for s in file.section_list if s.name == ".text" and s.stored), None)
    if section is None or not section.size:
        return b""
    code = bytes(file.read(section.offset, -(-min(section.size, HASHED) // GUID_SIZE) * GUID_SIZE))
    value = 0
    for at in range(0, len(code), GUID_SIZE):
        value ^= int.from_bytes(code[at : at + GUID_SIZE].ljust(GUID_SIZE, b"\0"), "big")
    return value.to_bytes(GUID_SIZE, "big")


def is_same_id(first: str, second: str) -> bool:
    """Return True if two Breakpad identifiers are equal, ignoring case and the age after the GUID.

    Symbol files of one build may state different ages. Shorter identifiers (PDB 2.0: time stamp and age) are compared
    completely.
    """
    if len(first) < 2 * GUID_SIZE:
        return bool(first) and first.upper() == second.upper()
    return first[: 2 * GUID_SIZE].upper() == second[: 2 * GUID_SIZE].upper()


def is_stated(file: ObjectFile, stated: StatedId) -> bool:
    """Return True if an object file has the architecture and the build ID or Breakpad identifier that a crash dump
    states for a module.
    """
    if file.arch is None or file.arch is not find_arch(stated.elf_machine, stated.elf_class, stated.byteorder):
        return False
    if stated.build_id and file.build_id:
        return file.build_id.startswith(stated.build_id)
    return is_same_id(breakpad_id(file), stated.debug_id)
