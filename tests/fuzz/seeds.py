"""The fuzzer's initial inputs for each reader: parts of real files of this machine and inputs of the tests."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from pyprof.exporters.protobuf_encoding import encode_data, encode_number
from pyprof.fleet.agent import control_socket
from pyprof.model.arch import X86_64
from pyprof.objfile.elf_file import ElfFile
from pyprof.recording.column_blocks import pack_columns
from pyprof.tools.breakpad_writer import SymbolWriter
from tests.breakpad.support import HEAD
from tests.breakpad.test_reader import SMALL
from tests.core.writer import CoreWriter, Load, R, W, X
from tests.exporters.profiles import golden
from tests.exporters.support import export
from tests.importers.test_perf_script import USUAL
from tests.interpreters.test_waiting_goroutines import made_goroutines
from tests.jit import test_jitdump as jit
from tests.jit.java_threads import LAYOUTS as JAVA_LAYOUTS
from tests.jit.java_threads import image as java_threads_image
from tests.jit.java_vm import image as java_vm_image
from tests.jit.js_engine import image as js_engine_image
from tests.jit.test_libunwind_list import INFO, LIST, REGION, with_procedure
from tests.minidump.test_fuzz import seed as dump
from tests.objfile.live import library, where
from tests.objfile.test_pe import MADE as WINDOWS_MODULE
from tests.objfile.test_pe import headers
from tests.perf.test_records import sample
from tests.recording.fuzzed import seed as blocks
from tests.remote.test_descriptions import REAL, TARGET
from tests.support import BUILDS
from tests.symbolize.test_cython import GENERATED
from tests.unwind.exidx.test_hostile import small_library
from tests.unwind.go_table import VERSIONS, table
from tests.unwind.sframe.test_hostile import SECTIONS
from tests.unwind.test_cfi_hostile import FRAMES
from tests.unwind.test_go_stacks import ASMCGOCALL, MORESTACK, SYSTEMSTACK


@cache
def programs() -> tuple[bytes, ...]:
    folder = Path(os.environ[BUILDS])
    made = (
        library(folder, "lib.so", "-g", "-gz"),
        where(folder, "v5", "-g", "-gdwarf-5", "-rdynamic"),
        where(folder, "v4", "-g", "-gdwarf-4", "-O2"),
        where(folder, "bare", "-rdynamic", "-s", "-Wl,--hash-style=gnu"),
    )
    return tuple(path.read_bytes() for path in made)


def symbol_text() -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(programs()[1])
        file.flush()
        out = io.BytesIO()
        SymbolWriter(file.name).write(out)
    return out.getvalue()


def cfi(name: str) -> list[bytes]:
    found = [ElfFile.from_bytes(data, "seed").section(name) for data in programs()]
    return [b"\0\0" + bytes(section) for section in found if section is not None] or [b"\0\0" + FRAMES]


def packed() -> list[bytes]:
    plain = programs()[3]
    head = struct.pack("<IIQQ", 1, 0, len(plain), 1)
    return [
        lzma.compress(plain),
        head + zlib.compress(plain),
        b"ZLIB" + struct.pack(">Q", len(plain)) + zlib.compress(plain),
    ]


def procs() -> Iterator[bytes]:
    yield b"1000-2000 r-xp 00003000 08:01 123 /lib/a b.so\n"
    for name in ("maps", "stat", "syscall"):
        yield Path("/proc/self", name).read_bytes()


def write(corpus: Path, readers: Sequence[str]) -> None:
    """Write the initial inputs into one folder of the corpus for each reader."""
    with tempfile.TemporaryDirectory(prefix="pyprof-fuzz-") as folder:
        os.environ.setdefault(BUILDS, folder)
        known = seeds()
        for reader in readers:
            (corpus / reader).mkdir(parents=True, exist_ok=True)
            for number, seed in enumerate(known.get(reader, ())):
                (corpus / reader / f"seed-{number}").write_bytes(seed)


def seeds() -> Mapping[str, list[bytes]]:
    """Return the inputs by reader. A reader without an entry begins without inputs."""
    memory = with_procedure(X86_64, True)
    code = compile("def f(a):\n  x = a\n\n  return [\n    x for x in a]\n", "f", "exec").co_consts[0].co_linetable
    return {
        "elf": [*programs()],
        "symbol_tables": [*programs()],
        "dwarf": [*programs()],
        "pe": [headers(), headers(0x14C), WINDOWS_MODULE],
        "breakpad": [b"\0" + (HEAD + SMALL).encode(), b"\0" + symbol_text()],
        "core": [core()],
        "minidump": [dump("windows")[0]],
        "eh_frame": cfi(".eh_frame"),
        "debug_frame": cfi(".debug_frame"),
        "expressions": [bytes([0x77, 8, 0x06, 0x80, 0x7F]), bytes([0x77, 8, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])],
        "sframe": [b"\0" + data for data, _, _ in SECTIONS.values()],
        "exidx": [small_library()],
        "go_table": [table(version=version)[0] for version in VERSIONS],
        "goroutine_offsets": [SYSTEMSTACK, MORESTACK, ASMCGOCALL],
        "waiting_goroutines": [made_goroutines(144), made_goroutines(152)],
        "perf_map": [b"7f00 10 py::f:/a b.py\n0x7f10 0x8 LazyCompile:~g x.js:1\nFFFF0 1  void A::b(int)\r\n"],
        "jitdump": [
            jit.HEADER + jit.lines(5, (0x1000, 7, "a")) + jit.load(6, 0x1000, 32, "f") + jit.move(7, 0x1000, 0x2000, 32)
        ],
        "gdb_packets": [b"+$T05thread:p1.1;10:08000000;#b0", b"$m0,1,2#94$l#6c"],
        "gdb_documents": [REAL, TARGET],
        "python_lines": [bytes([kind, 1, 2, 0]) + code for kind in range(3)],
        "compressed": packed(),
        "cython": [GENERATED.encode()],
        "procfs": [*procs()],
        "perf_records": [b"\0\0" + sample(5, 7, b"stack" * 8)],
        "kernel_types": [Path("/sys/kernel/btf/vmlinux").read_bytes()[: 1 << 16]]
        if Path("/sys/kernel/btf/vmlinux").exists()
        else [],
        "imported": [
            b"\0" + export("speedscope", golden()),
            b"\1" + gzip.decompress(export("pprof", golden())),
            b"\2" + export("collapsed", golden()),
            b"\3" + USUAL,
        ],
        "pushed": pushes(),
        "asks": [
            control_socket.ControlRequest("web", 30, 499).line(),
            b'{"recording": 3, "last_s": 600}\n{"kept": 3}\nabc{"asked": 0}\n{"done": 1}\n',
            b'{"refused": "ask_busy", "text": "x"}\n',
        ],
        "push_answers": [
            encode_data(1, encode_number(1, 3) + encode_data(2, b"rejected")),
            b"",
            b"17",
            b"Wed, 25 Nov 2026 09:00:00 GMT",
        ],
        "sample_columns": [pack_columns([np.arange(5), None, np.arange(5) << 20])],
        "packed_blocks": [blocks()],
        "libunwind": [b"".join(bytes(memory.pieces[at]).ljust(200, b"\0") for at in (LIST, INFO, REGION))],
        "gdb_jit": [struct.pack("<IIQQ4Q", 1, 1, 24, 24, 0, 0, 64, 64)],
        "java_vm": [java_vm_image()],
        "java_threads": [java_threads_image(layout)[0] for layout in JAVA_LAYOUTS.values()],
        "js_engine": [js_engine_image()],
        "names": [
            b"_ZN3foo3barIiSt6vectorIiSaIiEEEEvT_T0_",
            b"_RNvC6_123foo3bar",
            b"_ZN4core3fmt5write17h0123456789abcdefE",
        ],
    }


def pushes() -> list[bytes]:
    profile = gzip.decompress(export("pprof", golden()))
    pair = encode_data(1, b"env") + encode_data(2, b"prod")
    text = b'{"series": [{"labels": {"labels": [{"name": "a", "value": "b"}]}, "samples": [{"rawProfile": ""}]}]}'
    return [
        b"\0\0" + b"shop{env=prod,region=eu}".ljust(40) + profile,
        b'\1\0--b\r\nContent-Disposition: form-data; name="profile"\r\n\r\n' + profile + b"\r\n--b--",
        b"\2\0" + encode_data(1, encode_data(1, pair) + encode_data(2, encode_data(1, profile))),
        b"\3\0" + encode_data(2, encode_data(1, encode_data(1, pair)) + encode_data(2, encode_data(1, profile))),
        b"\3\1" + text,
        b"\4\0" + export("otlp", golden()),
    ]


def core() -> bytes:
    writer = CoreWriter(62, 64, "<")
    writer.thread(101, range(27), 11)
    writer.process(100, "name", "name -x")
    writer.auxv((3, 0x40), (9, 0x1_0000))
    writer.files((0x1_0000, 0x1_2000, 0x3000, "/bin/name"), (0x2_0000, 0x2_1000, 0, "/lib/a b.so"))
    return writer.build([Load(0x1_0000, b"code" * 64, R | X), Load(0x7FFF_0000, b"stack" * 99, R | W)])
