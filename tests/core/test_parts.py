"""Tests of the core file collector on synthetic cores in every class and byte order.

They cover notes, memory, modules and registers.
"""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from pyprof.collectors.postmortem.core_process import CoreFileProcess
from pyprof.errors import FormatError, UnsupportedArchitecture
from pyprof.model.arch import AARCH64, ARCHES, S390X
from pyprof.objfile.core_file import CoreMemory, CoreNotes, MappedFile, read_notes
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.target_memory_structs import LinkedObject, read_linked_objects
from pyprof.problem_counters import Diagnostics
from tests.core.writer import NT_ARM_PAC_MASK, NT_FILE, NT_FPREGSET, NT_PRPSINFO, NT_SIGINFO, CoreWriter, Load, R, W, X

pytestmark = [pytest.mark.matrix, pytest.mark.system]

STACK = 0x7000_0000
KINDS = [(62, 64, "<"), (3, 32, "<"), (183, 64, "<"), (183, 64, ">"), (40, 32, "<"), (40, 32, ">"), (22, 64, ">")]


def registers_of(machine: int, elf_class: int, order: str, **values: int) -> list[int]:
    """Return user_regs_struct with these values of pc, sp and other registers."""
    arch = ARCHES[machine, elf_class, "little" if order == "<" else "big"]
    slots = [0] * (max(arch.kernel.prstatus) + 4)
    for name, value in values.items():
        slots[arch.kernel.prstatus[getattr(arch, name)]] = value
    return slots


def notes_of(writer: CoreWriter) -> CoreNotes:
    return read_notes(ElfFile.from_bytes(writer.build([]), "core"))


def collector(
    tmp_path: Path, writer: CoreWriter, *loads: Load, diagnostics: Diagnostics | None = None
) -> CoreFileProcess:
    (tmp_path / "core").write_bytes(writer.build(loads))
    return CoreFileProcess(str(tmp_path / "core"), "", "", 1 << 16, diagnostics or Diagnostics())


@pytest.mark.parametrize(("machine", "elf_class", "order"), KINDS)
def test_notes_of_every_class_and_byte_order_are_read(machine: int, elf_class: int, order: str, tmp_path: Path) -> None:
    writer = CoreWriter(machine, elf_class, order)
    writer.thread(101, registers_of(machine, elf_class, order, pc=0x1_0000, sp=STACK), signal=7)
    writer.process(100, "name", "name -x")
    fields = writer.pack("iii", 7, 0, 2) + (bytes(4) if elf_class == 64 else b"")
    writer.note(NT_SIGINFO, (fields + writer.pack(writer.word, 0x1234)).ljust(128, b"\0"))
    writer.auxv((3, 0x40), (9, 0x1_0000))
    writer.files((0x1_0000, 0x1_2000, 0x3000, "/bin/name"), (0x2_0000, 0x2_1000, 0, "/lib/a b.so"))
    writer.thread(102, registers_of(machine, elf_class, order, pc=0x1_0010, sp=STACK + 64))
    notes = notes_of(writer)
    assert [(thread.tid, thread.signal) for thread in notes.threads] == [(101, 7), (102, 0)]
    assert notes.process is not None
    assert (notes.process.pid, notes.process.name, notes.process.arguments) == (100, "name", "name -x")
    assert notes.signal is not None
    assert (notes.signal.number, notes.signal.code, notes.signal.address) == (7, 2, 0x1234)
    assert notes.auxv == {3: 0x40, 9: 0x1_0000}
    assert notes.files == [
        MappedFile(0x1_0000, 0x1_2000, 0x3000, "/bin/name"),
        MappedFile(0x2_0000, 0x2_1000, 0, "/lib/a b.so"),
    ]
    assert not notes.oddities
    found = collector(tmp_path, writer, Load(0x1_0000, b"", R | X, 0x2000), Load(STACK, bytes(4096), R | W))
    batch = next(found.saved.batches())
    arch = found.arch
    assert batch.regs[:, arch.pc].tolist() == [0x1_0000, 0x1_0010]
    assert batch.regs[:, arch.sp].tolist() == [STACK, STACK + 64]
    assert batch.tid.tolist() == [101, 102]
    assert found.exe == "/bin/name"
    assert found.crashed == (7, 2, 0x1234)
    assert [mapping.perms for mapping in found.space.mappings] == ["r-xp", "r-xp", "rw-p"]


def test_process_note_of_32_bit_uids_is_read() -> None:
    writer = CoreWriter(22, 32, ">")
    writer.thread(5, [0] * 36)
    writer.note(NT_PRPSINFO, struct.pack(">4sIIIiiii16s80s", b"", 0, 0, 0, 5, 1, 5, 5, b"name", b"name"))
    process = notes_of(writer).process
    assert process is not None
    assert (process.pid, process.name) == (5, "name")


def test_architecture_that_is_not_known_is_named(tmp_path: Path) -> None:
    writer = CoreWriter(8, 32, ">")  # EM_MIPS
    writer.thread(5, [0] * 36)
    with pytest.raises(UnsupportedArchitecture, match=r"machine 8 \(32 bits\)"):
        collector(tmp_path, writer)


def test_mask_of_pointer_signatures_is_the_one_that_the_core_states(tmp_path: Path) -> None:
    writer = CoreWriter(183)
    writer.thread(5, [0] * 34)
    writer.note(NT_ARM_PAC_MASK, struct.pack("<QQ", 0x7F_0000_0000_0000, 0x7F_8000_0000_0000), name=b"LINUX\0")
    assert collector(tmp_path, writer).arch.pac_mask == 0x7F_8000_0000_0000
    assert AARCH64.pac_mask != 0x7F_8000_0000_0000


def test_floating_point_registers_are_taken_from_their_note_or_not_known(tmp_path: Path) -> None:
    writer = CoreWriter(22, 64, ">")
    writer.thread(5, registers_of(22, 64, ">", pc=0x1_0000, sp=STACK))
    bare = next(collector(tmp_path, writer).saved.batches())
    f4 = S390X.registers.index("f4")
    assert f4 in bare.unknown
    assert {S390X.pc, S390X.sp, S390X.fp, S390X.lr}.isdisjoint(bare.unknown)
    writer.note(NT_FPREGSET, struct.pack(">Q16Q", 0, *range(100, 116)))
    row = next(collector(tmp_path, writer).saved.batches())
    assert not row.unknown
    assert [int(row.regs[0, S390X.registers.index(f"f{n}")]) for n in (0, 4, 15)] == [100, 104, 115]


def test_threads_without_an_id_of_their_own_get_one(tmp_path: Path) -> None:
    writer = CoreWriter(62)
    for tid in (7, 7, 0, -3):
        writer.thread(tid, registers_of(62, 64, "<", pc=0x1_0000, sp=STACK))
    diagnostics = Diagnostics()
    found = collector(tmp_path, writer, diagnostics=diagnostics)
    batch = next(found.saved.batches())
    assert len(set(batch.tid.tolist())) == 4
    assert batch.tid[0] == 7
    assert diagnostics.counts["thread_without_id"] == 3


def test_memory_is_what_the_core_holds_across_neighbours_and_ends_at_the_first_hole() -> None:
    loads = [
        Load(0x1000, b"a" * 0x1000, R),
        Load(0x2000, b"b" * 0x800, R, memory=0x1000),
        Load(0x3000, b"c" * 0x1000, R),
        Load(0x3800, b"d" * 0x1000, R),  # an overlapping segment is ignored
    ]
    memory = CoreMemory(ElfFile.from_bytes(CoreWriter(62).build(loads), "core"))
    assert memory.read(0x1FFE, 4) == b"aabb"
    assert memory.read(0x27FE, 0x1000) == b"bb"
    assert memory.read(0x2800, 8) == b""
    assert memory.read(0xFFF, 8) == b""
    assert memory.read(0x37FF, 2) == b"cc"
    assert memory.read(0x4000, 1) == b""
    assert memory.read(-5, 8) == b""
    assert memory.read(0x1000, -1) == b""


def test_ten_gigabytes_that_are_promised_cost_nothing(tmp_path: Path) -> None:
    writer = CoreWriter(62)
    writer.thread(5, registers_of(62, 64, "<", pc=0x1_0000, sp=STACK + 64))
    promised = Load(STACK, bytes(4096), R | W, promised=10 << 30)
    diagnostics = Diagnostics()
    tracemalloc.start()
    found = collector(tmp_path, writer, promised, diagnostics=diagnostics)
    (batch,) = found.saved.batches()
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert int(batch.stack.size[0]) <= 4096
    assert diagnostics.counts["core_truncated"] > 9 << 30


def test_core_without_threads_and_other_elf_files_are_refused() -> None:
    with pytest.raises(FormatError, match="no thread"):
        notes_of(CoreWriter(62))
    with pytest.raises(FormatError, match="not a core file"):
        read_notes(ElfFile.open("/proc/self/exe"))


@pytest.mark.parametrize("content", [b"", struct.pack("<QQ", 1 << 60, 4096), struct.pack("<5Q", 1, 4096, 0, 9, 0)])
def test_broken_list_of_files_is_counted_and_the_rest_is_kept(content: bytes) -> None:
    writer = CoreWriter(62)
    writer.thread(5, [0] * 27)
    writer.note(NT_FILE, content)
    writer.thread(6, [0] * 27)
    notes = notes_of(writer)
    assert [thread.tid for thread in notes.threads] == [5, 6]
    assert notes.files in (None, [])
    assert len(notes.oddities) == (notes.files is None)


def test_list_of_objects_that_runs_in_circles_ends() -> None:
    memory = bytearray(4096)
    struct.pack_into("<QQQQQ", memory, 0, 1, 0x40, 0, 0, 0)
    struct.pack_into("<QQQQ", memory, 0x40, 0x1000, 0x100, 0x2000, 0x80)
    struct.pack_into("<QQQQ", memory, 0x80, 0x5000, 0x110, 0x6000, 0x40)
    memory[0x100:0x106] = b"/one\0"[:5] + b"\0"
    memory[0x110:0x116] = b"/two\0"[:5] + b"\0"

    def read(avma: int, size: int) -> bytes:
        return bytes(memory[avma : avma + size])

    found = list(read_linked_objects(read, 0, 64, "<"))
    assert found == [LinkedObject(0x1000, "/one", 0x2000), LinkedObject(0x5000, "/two", 0x6000)]
    assert list(read_linked_objects(lambda avma, size: b"", 0, 64, "<")) == []


def test_objects_of_further_namespaces_are_found() -> None:
    memory = bytearray(4096)
    struct.pack_into("<IIIIII", memory, 0, 2, 0x40, 0, 0, 0, 0x20)
    struct.pack_into("<IIIIII", memory, 0x20, 2, 0x60, 0, 0, 0, 0)
    struct.pack_into("<IIII", memory, 0x40, 0x1000, 0, 0x2000, 0)
    struct.pack_into("<IIII", memory, 0x60, 0x3000, 0, 0x4000, 0)
    found = read_linked_objects(lambda avma, size: bytes(memory[avma : avma + size]), 0, 32, "<")
    assert [entry.bias for entry in found] == [0x1000, 0x3000]


def test_what_the_core_left_out_is_read_from_its_file_if_it_cannot_have_changed(tmp_path: Path) -> None:
    path = "/proc/self/exe"
    elf = ElfFile.open(path)
    path = str(Path(path).resolve())
    text = next(load for load in elf.loads if load.flags & X)
    bias = 0x5000_0000_0000
    writer = CoreWriter(62)
    writer.thread(5, registers_of(62, 64, "<", pc=bias + text.vaddr, sp=STACK))
    spans = [(bias + s.vaddr & -4096, bias + s.vaddr + s.filesz + 4095 & -4096, s.offset & -4096, s) for s in elf.loads]
    spans = [span for k, span in enumerate(spans) if k == 0 or span[0] >= spans[k - 1][1]]
    writer.files(*((start, end, offset, path) for start, end, offset, _ in spans))
    writer.auxv((9, bias + elf.entry))
    loads = []
    for start, end, offset, segment in spans:
        stored = bytes(elf.source.read(offset, 4096)) if offset == 0 else b""
        loads.append(Load(start, stored, segment.flags, memory=end - start))
    found = collector(tmp_path, writer, *loads)
    start, _, offset, _ = next(span for span in spans if span[3] is text)
    assert found.space.read(start + 0x1000, 64) == bytes(elf.source.read(offset + 0x1000, 64))
    for start, _, _, segment in spans:
        if segment.flags & W:
            assert found.space.read(start, 8) == b""
