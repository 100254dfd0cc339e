"""Search for the local file that the target has mapped.

The candidates are, in this order: the target's own name for the file, seen from its root; the kernel's handle of the
mapping (exact even if the file is deleted or in another mount namespace; it needs CAP_SYS_ADMIN or
CAP_CHECKPOINT_RESTORE); the handle of the executable; the plain name. A candidate is used only if it is proved to be
the mapped file.

For a core file or crash dump, AddressSpace.files gives the candidates. The content proves them. A file that the user
named is also accepted if the memory proves nothing.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Module, ReadMemory
from pyprof.objfile import io_deadline
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.elf_file import ElfFile, build_id_in_notes
from pyprof.objfile.elf_sections import PAGE, PT_DYNAMIC, PT_NOTE
from pyprof.objfile.untrusted_file_access import current_opener, open_below

MAX_HANDLES = 4
MAX_PROOF = 1 << 16


DT_DEBUG = 21
MAX_TABLE = 1 << 16
MIN_EQUAL_ENTRIES = 8
"""Minimum number of equal entries of a file's dynamic table and the one in memory that prove a match. The entries
contain sizes and addresses of tables.
"""


class Identity(Enum):
    """The result of comparing a local file's content with the memory of a process that may have mapped the file."""

    BUILD_ID = "same build-id"
    CONTENT = "no build-id to compare, same headers and code"
    UNKNOWN = "memory not readable"
    DIFFERENT = "not the same"


F = TypeVar("F", bound=ObjectFile)
F_co = TypeVar("F_co", bound=ObjectFile, covariant=True)


@dataclass(frozen=True)
class Candidate(Generic[F_co]):
    """An open file that may be the mapped one.

    Attributes:
        elf: The file.
        handle: The kernel gave the file itself, not a path. For a core file or crash dump: the list of the target's
            files names it.
        same_file: Device and inode equal those of the mapping.
        same_inode: The inode equals that of the mapping (overlayfs and btrfs show another device).
        named: The user named the file.
    """

    elf: F_co
    handle: bool
    same_file: bool
    same_inode: bool
    named: bool = False


def find_candidates(
    space: AddressSpace,
    module: Module,
    opened: dict[tuple[int, int, int, int], F],
    silent: Callable[[], None],
    open_file: Callable[[int], F],
) -> Iterator[Candidate[F]]:
    """Yield local files that may be the file that a target has mapped, the best first.

    Args:
        space: The address space.
        module: The module.
        opened: Cache of open files by (device, inode, size, mtime).
        silent: Function that is called if the file system of a candidate does not respond.
        open_file: Opens a file of the wanted format by its descriptor. It raises FormatError for other formats.
    """
    for way, handle, named in _ways(space, module):
        try:
            fd = way()
            status = io_deadline.stat_descriptor(fd)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
                silent()
            continue
        try:
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            elf = opened.get(key)
            if elf is None:
                try:
                    elf = opened[key] = open_file(fd)
                except FormatError:
                    continue
                elf.name = module.path
        finally:
            io_deadline.close_descriptor(fd)
        if space.files is not None:
            yield Candidate(elf, True, False, False, named)
            continue
        same_inode = status.st_ino == module.inode
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        yield Candidate(elf, handle, same_inode and device == module.dev, same_inode)


def _ways(space: AddressSpace, module: Module) -> Iterator[tuple[Callable[[], int], bool, bool]]:
    """Yield local files that may be the mapped one, as (function that opens the file, handle, named); `handle` and
    `named` are fields of Candidate.
    """
    opener = current_opener()
    if space.files is not None:
        yield from ((partial(opener.open_named, path), True, named) for path, named in space.files(module))
        return
    name = module.path.replace("\\012", "\n")  # the one escape of /proc/PID/maps
    if not module.deleted:
        yield partial(open_below, space.root, name), False, False
    for mapping in sorted(module.mappings, key=lambda m: not m.executable)[:MAX_HANDLES]:
        yield partial(opener.open_mapped, space.pid, mapping.start, mapping.end), True, False
    yield partial(_program, space.pid, module.inode), True, False
    if not module.deleted:
        yield partial(open_below, "", name), False, False


def _program(pid: int, inode: int) -> int:
    """Open the program file that a process runs, if it has the given inode, and return the descriptor."""
    fd = current_opener().open_program(pid)
    if io_deadline.stat_descriptor(fd).st_ino != inode:
        io_deadline.close_descriptor(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return fd


def is_accepted(candidate: Candidate[ElfFile], identity: Identity) -> bool:
    """Return True if the candidate file certainly is the mapped file."""
    if identity is Identity.BUILD_ID:
        return True
    if identity is Identity.CONTENT:
        return candidate.same_inode or candidate.handle
    known = candidate.named or candidate.same_file or (candidate.handle and candidate.same_inode)
    return identity is Identity.UNKNOWN and known


def read_target(space: AddressSpace, avma: int, size: int) -> bytes:
    """Read the target's memory at an address that comes from a file, and so may be invalid."""
    return space.read(avma, size) if 0 <= avma < 1 << 64 else b""


def identify(space: AddressSpace, module: Module, elf: ElfFile, bias: int) -> Identity:
    """Compare a local file with the target's memory, assuming a load bias, and return whether it is the mapped file.

    The build ID decides if a segment of notes has it and is mapped. From Go 1.24 on, Go's linker writes it outside of
    that segment. Otherwise the headers do. A mapping without headers is compared by its code (V8 maps its builtins out
    of the executable a second time). If neither is readable (core files), the dynamic table decides.
    """
    if elf.build_id:
        readable = False
        for segment in elf.segments:
            size = min(segment.filesz, MAX_PROOF)
            stated = segment.type == PT_NOTE and build_id_in_notes(elf.source.read(segment.offset, size), elf.order)
            if stated == elf.build_id and _is_mapped(space, module, segment.offset, bias + segment.vaddr):
                notes = read_target(space, bias + segment.vaddr, size)
                readable = readable or len(notes) == size
                if build_id_in_notes(memoryview(notes), elf.order) == elf.build_id:
                    return Identity.BUILD_ID
        if readable:
            return Identity.DIFFERENT
    code = [m for m in module.mappings if m.executable][:MAX_HANDLES]
    compared = [_same_bytes(space, elf, m.start, m.offset, min(PAGE, m.end - m.start)) for m in code]
    first = next((s for s in elf.loads if s.offset == 0), None)
    if first is not None and _is_mapped(space, module, 0, bias + first.vaddr):
        compared.append(_same_bytes(space, elf, bias + first.vaddr, 0, min(elf.headers_size, first.filesz, MAX_PROOF)))
    if space.files is not None and not {True, False} & set(compared):
        compared.append(is_same_dynamic_table(elf, bias, partial(read_target, space)))
    if False in compared:
        return Identity.DIFFERENT
    return Identity.CONTENT if True in compared else Identity.UNKNOWN


def _is_mapped(space: AddressSpace, module: Module, offset: int, avma: int) -> bool:
    """Return True if a module's file is mapped at an address with this file offset."""
    mapping = space.mapping_at(avma)
    return (
        mapping is not None
        and mapping.file == module.mappings[0].file
        and avma - mapping.start + mapping.offset == offset
    )


def _same_bytes(space: AddressSpace, elf: ElfFile, avma: int, offset: int, size: int) -> bool | None:
    """Return True if the target's memory and a file have equal bytes, None if one of them has too few to decide."""
    expected = bytes(elf.source.read(offset, size))
    mapped = read_target(space, avma, len(expected))
    if len(mapped) < len(expected) or not any(expected):
        return None
    return mapped == expected


def find_bias(module: Module, elf: ElfFile, avma: int) -> int | None:
    """Return the load bias (address in the process minus address in the file) of a module, or None.

    It follows from the executable mapping around an address and the PT_LOAD segment with the mapping's file offset. But
    one page of a file may belong to two segments, and text may have been moved to anonymous huge pages, so that only
    other mappings remain. So every mapping votes for each segment that overlaps it. Equal permissions and the given
    address increase the weight.
    """
    votes: dict[int, int] = {}
    for mapping in module.mappings:
        for load in elf.loads:
            if (
                mapping.offset < load.offset + load.filesz
                and load.offset < mapping.offset + mapping.end - mapping.start
            ):
                bias = mapping.start - mapping.offset + load.offset - load.vaddr
                code = load.executable
                weight = 1 + 2 * (mapping.executable == code)
                weight += 8 * (mapping.executable and code and mapping.start <= avma < mapping.end)
                votes[bias] = votes.get(bias, 0) + weight
    if not votes:
        return None
    return max(votes, key=lambda bias: (votes[bias], -bias))


def read_dynamic_entries(data: bytes | memoryview, elf_class: int, order: str) -> Iterator[tuple[int, int]]:
    """Yield (tag, value) of each entry of an ELF dynamic table before DT_NULL."""
    pair = struct.Struct(order + ("QQ" if elf_class == 64 else "II"))
    for tag, value in pair.iter_unpack(data[: len(data) // pair.size * pair.size]):
        if tag == 0:
            return
        yield tag, value


def is_same_dynamic_table(elf: ElfFile, bias: int, read: ReadMemory) -> bool | None:
    """Compare the file's dynamic table with the one in memory, for an assumed load bias.

    The loader fills in DT_DEBUG and adds the bias to some addresses in place.

    Returns:
        True if they are equal, False if not, None if there is nothing to compare.
    """
    mask = (1 << elf.elf_class) - 1
    for segment in elf.segments:
        if segment.type != PT_DYNAMIC or not 0 <= bias + segment.vaddr <= mask:
            continue
        size = min(segment.filesz, MAX_TABLE)
        there = read(bias + segment.vaddr, size)
        if len(there) < size:
            return None
        stated = list(read_dynamic_entries(elf.source.read(segment.offset, size), elf.elf_class, elf.order))
        loaded = list(read_dynamic_entries(there, elf.elf_class, elf.order))
        if len(stated) < MIN_EQUAL_ENTRIES:
            return None
        return len(stated) == len(loaded) and all(
            tag == tag_there and (tag == DT_DEBUG or value_there in (value, value + bias & mask))
            for (tag, value), (tag_there, value_there) in zip(stated, loaded, strict=True)
        )
    return None
