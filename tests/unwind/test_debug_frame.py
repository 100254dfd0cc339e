"""Tests of .debug_frame: lazy decompression and indexing, and FDEs of functions that the linker dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import NO_TABLE, DebugFrame, open_debug_frame, open_eh_frame
from tests.unwind.cfi_assembler import Frames, advance, algebra, def_cfa_offset
from tests.unwind.cfi_elf import Content, compressed, elf_bytes


def frames_of(*functions: tuple[int, int]) -> Frames:
    frames = Frames(eh=False, svma=0)
    for start, size in functions:
        frames.fde(
            frames.cie(), start, size, advance(1), def_cfa_offset(16)
        )  # one CIE for each FDE, as compilers write it
    return frames


def source_of(content: Content, *, code: tuple[int, int] | None = (0x1000, 0x10000)) -> DebugFrame:
    elf = ElfFile.from_bytes(elf_bytes({".debug_frame": content}, code), "program")
    source = open_debug_frame(elf, X86_64, Diagnostics())
    assert source is not None
    return source


def starts(source: DebugFrame, *svmas: int) -> list[int | None]:
    found = [source.function_at(svma) for svma in svmas]
    return [f.start if f else None for f in found]


@pytest.mark.parametrize("pack", [lambda data: Content(bytes(data)), lambda data: compressed(bytes(data))])
def test_functions_are_found(pack: Callable[[bytearray], Content]) -> None:
    source = source_of(pack(frames_of((0x1020, 0x10), (0x1000, 0x20), (0x1100, 0x10)).data))
    assert starts(source, 0xFFF, 0x1000, 0x101F, 0x1020, 0x1030, 0x110F, 0x1110) == [
        *(None, 0x1000, 0x1000, 0x1020, None, 0x1100, None)
    ]
    assert [f.start for f in source.functions()] == [0x1000, 0x1020, 0x1100]
    function = source.function_at(0x1000)
    assert function is not None
    assert algebra(function) == ["+0x0 cfa = sp + 8; ra = [cfa - 8]", "+0x1 cfa = sp + 16; ra = [cfa - 8]"]
    assert (source.name, source.trust) == ("debug_frame", Trust.DEBUG_FRAME)


@pytest.mark.parametrize("tombstone", [0, (1 << 64) - 0x2001, (1 << 64) - 0x2002, 0x20_0000])
def test_functions_that_the_linker_dropped_cover_nothing(tombstone: int) -> None:
    source = source_of(Content(bytes(frames_of((tombstone, 0x2000), (0x1000, 0x20)).data)))
    assert starts(source, 0x1010, 0x1800, tombstone + 0x10) == [0x1000, None, None]


def test_function_at_address_0_is_dropped_where_no_segment_tells() -> None:
    source = source_of(Content(bytes(frames_of((0, 0x2000), (0x1000, 0x20)).data)), code=None)
    assert starts(source, 0x10, 0x1010, 0x1800) == [None, 0x1000, None]


def test_nothing_is_read_before_the_first_question() -> None:
    elf = ElfFile.from_bytes(elf_bytes({".debug_frame": Content(b"\xff" * 40, flags=0x800)}), "program")
    source = open_debug_frame(elf, X86_64, Diagnostics())
    assert source is not None
    for _ in range(2):
        with pytest.raises(FormatError):
            source.function_at(0x1000)


def test_file_without_the_section_has_no_source() -> None:
    elf = ElfFile.from_bytes(elf_bytes({".text": Content(b"\xc3")}), "program")
    assert open_debug_frame(elf, X86_64, Diagnostics()) is None
    assert open_eh_frame(elf, X86_64, Diagnostics()) is None


# ---- .eh_frame in ELF files


def eh_elf(headers: bool, with_hdr: bool = True, svma: int = 0x20000) -> ElfFile:
    frames = Frames(svma=svma + 0x1000)
    frames.fde(frames.cie(), 0x1000, 0x20, advance(1), def_cfa_offset(16))
    frames.fde(frames.cie(), 0x2000, 0x20)
    frames.terminator()
    frames.data += b"\xcc" * 64 if not headers else b""  # other data of the segment
    sections = {".eh_frame": Content(bytes(frames.data), frames.svma, 2)}
    if with_hdr:
        sections[".eh_frame_hdr"] = Content(frames.hdr(svma), svma, 2)
    return ElfFile.from_bytes(elf_bytes(sections, headers=headers), "program")


@pytest.mark.parametrize("headers", [True, False])
def test_eh_frame_is_found_with_and_without_section_headers(headers: bool) -> None:
    diagnostics = Diagnostics()
    source = open_eh_frame(eh_elf(headers), X86_64, diagnostics)
    assert source is not None
    assert [f and f.start for f in map(source.function_at, (0x1010, 0x1020, 0x2010))] == [0x1000, None, 0x2000]
    assert [f.start for f in source.functions()] == [0x1000, 0x2000]
    assert not diagnostics.counts


def test_eh_frame_without_a_header_section_is_indexed() -> None:
    diagnostics = Diagnostics()
    source = open_eh_frame(eh_elf(True, with_hdr=False), X86_64, diagnostics)
    assert source is not None
    assert [f and f.start for f in map(source.function_at, (0x1010, 0x1020, 0x2010))] == [0x1000, None, 0x2000]
    assert diagnostics.counts == {NO_TABLE: 1}
