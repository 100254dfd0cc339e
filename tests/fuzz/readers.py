"""Fuzz targets: each reader of foreign data as a function of bytes, which returns or raises only what callers expect.

The first bytes choose an argument such as the architecture or the byte order. A reader that has a separate fuzz test is
called as in that test.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from pyprof.collectors.bpf.bpf_object import find_member_offset
from pyprof.collectors.bpf.ring_buffer_records import HEAD_WORDS, REGISTERS, read_records
from pyprof.collectors.gdb_stub.stub_requests import StopReply
from pyprof.collectors.gdb_stub.target_modules import parse_libraries
from pyprof.collectors.gdb_stub.threads_and_registers import parse_description
from pyprof.collectors.linux.interrupted_syscalls import parse_syscall
from pyprof.collectors.linux.procfs import parse_maps, parse_stat
from pyprof.errors import FormatError, PyprofError, RemoteError
from pyprof.fleet.agent import control_socket
from pyprof.fleet.agent.control_socket import ControlRefused
from pyprof.fleet.agent.push_segment_to_pprof import check_empty
from pyprof.fleet.agent.push_sinks_otlp_parca_pyroscope import check_exported
from pyprof.fleet.wire.push_client import MAX_WAIT_S, wait_s
from pyprof.fleet.wire.push_response_verdicts import NotSent, RefusedForGood
from pyprof.importers import collapsed, otlp, perf, pprof, pyroscope_parca_requests, speedscope
from pyprof.interpreters.cpython.code_objects import CodeReader, find_line
from pyprof.interpreters.cpython.layout import LAYOUTS, LineTableFormat
from pyprof.interpreters.cpython.object_reader import Memory as Words
from pyprof.interpreters.cpython.object_reader import Objects, Unreadable
from pyprof.interpreters.detection_symbols import Symbol
from pyprof.interpreters.function_table import FunctionTable
from pyprof.interpreters.goroutines import MAX_GOROUTINES, decode_offsets, is_unchanged, read_goroutines
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import AARCH64, ARM, I386, S390X, X86_64, Arch
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.core_file import CoreMemory, read_notes
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_memory_image import relocate_memory_object
from pyprof.objfile.elf_sections import inflate_debugdata, inflate_section, inflate_zdebug
from pyprof.objfile.jitdump import JitdumpReader
from pyprof.objfile.minidump import read_microdump, read_minidump
from pyprof.objfile.pe import PeFile, PeImage, find_windows_module
from pyprof.problem_counters import Diagnostics
from pyprof.recording.column_blocks import unpack_columns
from pyprof.runtime_code.gdb_jit_and_libunwind_code import code_ranges
from pyprof.symbolize.demangle import demangle, is_harmless
from pyprof.symbolize.dwarf_attribute_forms import Deadline, OutOfTime
from pyprof.symbolize.dwarf_source_lines import SourceLines
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.symbolize.perf_map import PerfMapReader
from pyprof.symbolize.source_files import parse_places
from pyprof.symbolize.symbol_table import SymbolTable
from pyprof.unwind.dwarf_expressions import ExpressionFailed, Machine, evaluate_expression
from pyprof.unwind.formats.cfi_cie_and_fde import CfiSection
from pyprof.unwind.formats.gdb_jit import read_list, read_object
from pyprof.unwind.formats.gopclntab import add_stack_switches
from pyprof.unwind.formats.libunwind_registrations import DynReader, RegionFormat, open_table
from pyprof.unwind.formats.pdata import open_pdata
from pyprof.unwind.rules import FunctionRows, RegKind, RegRule, Rule
from tests.breakpad.test_fuzz import exhaust as use_symbol_file
from tests.jit.java_threads import exhaust as read_java_threads
from tests.jit.java_vm import exhaust as read_java_vm
from tests.jit.js_engine import exhaust as read_js_engine
from tests.jit.memory import Memory
from tests.jit.test_libunwind_list import INFO, LIST, NAME, REGION
from tests.objfile.test_fuzz_elf import use_everything
from tests.objfile.test_pe import BASE, space
from tests.perf.test_records import test_bodies_and_rings_of_any_bytes_are_taken_or_refused as use_records
from tests.recording.fuzzed import packed_blocks
from tests.remote.test_packets import everything as packets
from tests.unwind.exidx.test_hostile import use as use_exidx
from tests.unwind.sframe.test_hostile import exhaust as use_sframe
from tests.unwind.test_cfi_hostile import ask_everything
from tests.unwind.test_gopclntab import exhaust as gopclntab

Reader = Callable[[bytes], None]

ARCHES: Sequence[Arch] = (X86_64, I386, AARCH64, ARM, S390X)
MASK = (1 << 64) - 1
_MAX_PLACES = 64


def elf(data: bytes) -> None:
    with suppress(FormatError):
        use_everything(data)


def symbol_tables(data: bytes) -> None:
    with suppress(FormatError):
        file = ElfFile.from_bytes(data, "fuzz")
        sources = read_symbol_sources(file, lambda: None)
        table = SymbolTable(sources.rows)
        for row in range(min(len(table), _MAX_PLACES)):
            assert int(table.start[row]) <= int(table.end[row])
            table.name(row)
        assert all(isinstance(error, FormatError) for error in sources.broken)


def dwarf(data: bytes) -> None:
    """Read line tables, inlined functions and address ranges."""
    with suppress(FormatError):
        file = ElfFile.from_bytes(data, "fuzz")
        lines = SourceLines(file)
        text = file.sections.get(".text")
        start = text.addr if text is not None else file.entry
        with suppress(OutOfTime):
            for svma in range(start, start + 16 * _MAX_PLACES, 16):
                lines.find(svma & MASK, Deadline(2.0))
        assert all(isinstance(error, FormatError) for error in lines.broken)


def pe(data: bytes) -> None:
    """Read a Windows module in memory and in a file, its names and its function table."""
    found = find_windows_module(space(data), BASE + 0x1000)
    if found is not None:
        _ = PeImage(*found, space(data).read).section_list
    with suppress(FormatError):
        file = PeFile.from_bytes(data, "fuzz")
        read_symbol_sources(file, lambda: None)
        source = open_pdata(file, X86_64, Diagnostics())
        if source is not None:
            for start in source.extents()[0][:_MAX_PLACES].tolist():
                with suppress(FormatError):
                    source.function_at(start)


def breakpad(data: bytes) -> None:
    use_symbol_file(data[1:], ARCHES[data[0] % 4] if data else X86_64)


def core(data: bytes) -> None:
    with suppress(PyprofError):
        file = ElfFile.from_bytes(data, "core")
        CoreMemory(file).read(0, 4096)
        read_notes(file)


def minidump(data: bytes) -> None:
    with suppress(PyprofError):
        read_minidump(BytesSource(data))


def microdump(data: bytes) -> None:
    with suppress(PyprofError):
        read_microdump(BytesSource(data))


def _cfi(data: bytes, eh: bool) -> None:
    if len(data) > 2:
        arch, name = ARCHES[data[0] % len(ARCHES)], ".eh_frame" if eh else ".debug_frame"
        order = "big" if data[1] & 1 else "little"
        ask_everything(CfiSection(name, memoryview(data[2:]), 0x1000, eh, order, arch.word), arch, None)


def eh_frame(data: bytes) -> None:
    _cfi(data, eh=True)


def debug_frame(data: bytes) -> None:
    _cfi(data, eh=False)


def expressions(data: bytes) -> None:
    machine = Machine(X86_64, list(range(17)), lambda avma, size: avma & ((1 << 8 * size) - 1))
    found = evaluate_expression(data, machine, (7,))
    assert isinstance(found, ExpressionFailed) or 0 <= found <= MASK


def sframe(data: bytes) -> None:
    if data:
        use_sframe(data[1:], 0x1000, (X86_64, AARCH64, S390X)[data[0] % 3])


def exidx(data: bytes) -> None:
    use_exidx(data, [0x15CE4, 0x16000])


def perf_map(data: bytes) -> None:
    reader = PerfMapReader(Diagnostics())
    for at in range(0, len(data), 100):
        found = reader.read(data[at : at + 100])
        assert (found.start < found.end).all()
        assert int(found.length.sum()) == len(found.names)


def jitdump(data: bytes) -> None:
    with suppress(FormatError):
        JitdumpReader().read(data)


def gdb_packets(data: bytes) -> None:
    with suppress(RemoteError):
        for item in packets(data, 7):
            StopReply.parse(item.payload)


def gdb_documents(data: bytes) -> None:
    with suppress(RemoteError):
        list(parse_libraries(data))
    with suppress(RemoteError):
        parse_description({"target.xml": data}.get)


def python_objects(data: bytes) -> None:
    """Read code objects and values of CPython from random memory that points into itself."""
    if len(data) < 16:
        return
    minor = sorted(LAYOUTS)[data[0] % len(LAYOUTS)]
    base, words = 0x7F00_0000_0000, bytearray(data[8 : 8 + (len(data) & -8)])
    for at in range(0, len(words) - 7, 8):  # a word with an odd top byte becomes a pointer into the memory
        if words[at + 7] & 1:
            offset = int.from_bytes(words[at : at + 2], "little") % len(words)
            words[at : at + 8] = (base + (offset & -8)).to_bytes(8, "little")
    held = bytes(words)
    memory = Words(lambda avma, size: held[avma - base : avma - base + size] if base <= avma else b"")
    layout = LAYOUTS[minor]
    objects, codes = Objects(memory, layout.object, minor), CodeReader(memory, layout, FunctionTable())
    for at in range(base, base + min(len(held), 256), 8):
        with suppress(Unreadable):
            codes.find_place(at, codes.read_head(at), at)
        for read in (objects.read_str, objects.read_bytes_object, objects.tuple_items, objects.read_int):
            with suppress(Unreadable):
                read(at)
        with suppress(Unreadable):
            assert len(list(objects.dict_items(at))) <= 1 << 16


def python_lines(data: bytes) -> None:
    if len(data) > 4:
        kinds = list(LineTableFormat)
        find_line(kinds[data[0] % len(kinds)], data[4:], data[1], int.from_bytes(data[2:4], "little"))


def compressed(data: bytes) -> None:
    """Inflate .gnu_debugdata, SHF_COMPRESSED and .zdebug sections."""
    view = memoryview(data)
    with suppress(FormatError):
        inflate_debugdata(view)
    with suppress(FormatError):
        inflate_section(".debug_info", view, 64, "little")
    with suppress(FormatError):
        inflate_section(".debug_info", view, 32, "big")
    with suppress(FormatError):
        inflate_zdebug(".zdebug_info", view)


def cython(data: bytes) -> None:
    for number, source, line in parse_places(b"/* Generated by Cython" + data):
        assert number > 0
        assert (line == 0) >= (source == "")


def procfs(data: bytes) -> None:
    for parse in (parse_maps, parse_stat, parse_syscall):
        with suppress(FormatError):
            parse(data)


def perf_records(data: bytes) -> None:
    if len(data) >= 2:
        inner: Callable[[bytes, int], None] = use_records.hypothesis.inner_test  # type: ignore[attr-defined]
        inner(data[2:], int.from_bytes(data[:2], "little"))


def bpf_records(data: bytes) -> None:
    """Read records of the BPF program. The counts in a record are limited, as the BPF program limits them."""
    words = np.zeros(1 << 13, np.uint64)
    content = np.frombuffer(data[: len(data) & -8], np.uint64)[: 4 * HEAD_WORDS]
    words[: len(content)] = content
    halves = words.view(np.uint32)
    halves[2 * (3 + REGISTERS) + np.array([3, 4, 15, 18])] %= 16
    records = read_records(words, [0])
    for lane in range(len(records)):
        records.select_rows(np.array([lane]))


def kernel_types(data: bytes) -> None:
    with suppress(FormatError, PyprofError):
        find_member_offset(data, "task_struct", "pid")
        find_member_offset(data, "mm_struct", "exec_vm")


def libunwind(data: bytes) -> None:
    memory, third = Memory(), len(data) // 3
    for number, avma in enumerate((LIST, INFO, REGION)):
        memory.put(avma, data[number * third : (number + 1) * third])
    memory.put(NAME, b"name\0")
    reader = DynReader(memory.read, X86_64)
    with suppress(FormatError):
        for found in reader.read_heads(LIST).heads:
            info = reader.read_info(found, usual=True)
            table = None
            if found.format != RegionFormat.DYNAMIC:
                table = open_table(info, memory.read, X86_64, Diagnostics())
            if table is not None:
                table.function_at(found.start)


def gdb_jit(data: bytes) -> None:
    memory = Memory()
    memory.put(0, data)
    with suppress(FormatError):
        for entry in read_list(memory.read, X86_64, 0).entries:
            if entry.size < 1000:
                relocate_memory_object(read_object(memory.read, X86_64, entry), "x")
    with suppress(FormatError):
        code_ranges(relocate_memory_object(data, "x"))


def java_vm(data: bytes) -> None:
    read_java_vm(data)


def java_threads(data: bytes) -> None:
    read_java_threads(data)


def js_engine(data: bytes) -> None:
    read_js_engine(data)


def names(data: bytes) -> None:
    """Demangle a name if it is one that pyprof demangles within its process."""
    name = data.decode("utf-8", "replace")
    if is_harmless(name):
        demangle([name])


def imported(data: bytes) -> None:
    """Read a file of another profiler, which the first byte chooses."""
    readers = (
        speedscope.read_speedscope,
        pprof.read_pprof,
        collapsed.read_collapsed,
        perf.read_perf_script,
    )
    read = readers[data[0] % 4 if data else 2]
    with suppress(FormatError, OverflowError):  # as importers/registry.py catches them
        read(data[1:], "x")


def pushed(data: bytes) -> None:
    """Read a push of another agent. The first byte chooses the endpoint, the second one whether it is JSON."""
    if len(data) < 2:
        return
    kind = pyroscope_parca_requests.JSON if data[1] & 1 else "application/proto"
    senders: Sequence[Callable[[bytes], object]] = (
        lambda body: pyroscope_parca_requests.read_pyroscope_ingest(
            {"name": body[:40].decode("utf-8", "replace"), "format": "pprof"}, kind, body[40:]
        ),
        lambda body: pyroscope_parca_requests.read_pyroscope_ingest(
            {"name": "a{b=c}"}, "multipart/form-data; boundary=b", body
        ),
        lambda body: pyroscope_parca_requests.read_pyroscope_push(kind, body),
        lambda body: pyroscope_parca_requests.read_parca_write(kind, body),
        otlp.read_otlp,
    )
    with suppress(FormatError):
        senders[data[0] % len(senders)](data[2:])


def asks(data: bytes) -> None:
    """Read both sides of the agent's control protocol."""
    with suppress(ControlRefused):
        request = control_socket.parse(data)
        if isinstance(request, control_socket.ControlRequest):
            assert control_socket.parse(request.line()) == request
    stream = io.BytesIO(data)
    with suppress(ControlRefused, FormatError):
        assert sum(len(answer.data) for answer in control_socket.answers(stream.readline, stream.read)) <= len(data)


def push_answers(data: bytes) -> None:
    """Check response bodies of receivers and their Retry-After headers."""
    for check in (check_empty, check_exported):
        with suppress(NotSent, RefusedForGood):
            check(data)
    assert 0 <= wait_s(data.decode("latin-1")) <= MAX_WAIT_S


def sample_columns(data: bytes) -> None:
    with suppress(FormatError):
        unpack_columns(data, 5, 3)


def go_table(data: bytes) -> None:
    gopclntab(data)


def goroutine_offsets(data: bytes) -> None:
    """Decode code of Go's runtime, in a process whose memory is the same bytes."""
    space = AddressSpace(0, 1, 0, (), lambda avma, size: data[avma : avma + size], "")
    found = decode_offsets(data, 0, space)
    assert found is None or all(0 <= at < 4096 for at in (found.m, found.g0, found.gsignal, found.curg, found.sched))
    rows = FunctionRows(0, len(data), (0,), (Rule(X86_64.sp, 8, RegRule(RegKind.AT_CFA, -8)),))
    for name in ("runtime.systemstack", "runtime.morestack", "runtime.asmcgocall"):
        switched = add_stack_switches(rows, name, data, X86_64)
        assert list(switched.starts) == sorted(set(switched.starts))


def waiting_goroutines(data: bytes) -> None:
    """Read goroutines of a process whose memory is the same bytes."""

    def read(avma: int, size: int) -> bytes:
        assert 0 <= avma < MASK
        assert size <= 8 * MAX_GOROUTINES
        return data[avma : avma + size]

    symbols = [Symbol(b"runtime.allgs", 8, 24), Symbol(b"runtime.waitReasonStrings", 32, 64)]
    with suppress(FormatError):
        for goroutine, g in read_goroutines(read, symbols, 1 << 62):
            assert goroutine.sp < goroutine.stack_end
            assert len(goroutine.state) < 100
            assert is_unchanged(read, g, goroutine)


READERS: dict[str, Reader] = {
    reader.__name__: reader
    for reader in (
        *(elf, symbol_tables, dwarf, pe, breakpad, core, minidump, microdump, eh_frame, debug_frame, expressions),
        *(sframe, exidx, perf_map, jitdump, gdb_packets, gdb_documents, python_objects, python_lines, compressed),
        *(
            cython,
            procfs,
            perf_records,
            bpf_records,
            kernel_types,
            libunwind,
            gdb_jit,
            java_vm,
            java_threads,
            js_engine,
            names,
        ),
        *(imported, pushed, asks, push_answers, sample_columns, packed_blocks, go_table, goroutine_offsets),
        waiting_goroutines,
    )
}
