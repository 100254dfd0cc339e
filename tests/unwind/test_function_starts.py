"""Tests of the starts of functions without a symbol in each table.

.ARM.exidx is not used because its entries merge functions.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from pyprof.model.address_space import Module
from pyprof.model.arch import X86_64, find_arch
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.function_starts import FunctionStarts
from pyprof.unwind.module_unwind_sources import READERS, open_sources
from pyprof.unwind.rule_lookup import FileTables, RuleIndex
from tests.objfile.live import symbol
from tests.support import PROGRAMS, build

pytestmark = pytest.mark.system

BIAS = 0x7F00_0000_0000
FLAGS = ("-O1", "-shared", "-fPIC", "-nostdlib")


def opened(path: Path, *flags: str, compiler: str = "gcc") -> tuple[Image, list[int], set[str]]:
    """Build a library, and return its image, the starts of its functions and the names of its tables."""
    build(PROGRAMS / "c_shards_lib.c", path, *FLAGS, *flags, compiler=compiler)
    starts = [symbol(path, name) for name in ("first", "second", "enter")]
    elf = ElfFile.open(str(path))
    arch = find_arch(elf.machine, elf.elf_class, elf.byteorder)
    assert arch
    tables = {source.name for source in open_sources(elf, arch, tuple(READERS), Diagnostics())}
    module = Module(BIAS, BIAS + 0x10000, str(path), "08:01", 7, False, ())
    return Image(module, elf, BIAS), starts, tables


@pytest.mark.parametrize(
    ("table", "flags"),
    [
        ("eh_frame", ("-fasynchronous-unwind-tables",)),
        ("debug_frame", ("-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")),
    ],
)
def test_every_address_of_a_function_has_its_start(table: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    image, starts, tables = opened(tmp_path / "lib.so", *flags)
    assert table in tables
    find = FunctionStarts()
    for start, end in zip(sorted(starts), [*sorted(starts)[1:], sorted(starts)[-1] + 8], strict=True):
        found = {find(image, BIAS + at) for at in range(start, end)}
        assert start in found
        assert found <= {start, None}
    assert find(image, BIAS + 8) is None


def test_exception_tables_of_arm_name_no_function(tmp_path: Path) -> None:
    image, starts, tables = opened(tmp_path / "lib.so", "-funwind-tables", compiler="arm-linux-gnueabihf-gcc")
    assert tables == {"exidx"}
    find = FunctionStarts()
    assert {find(image, BIAS + start) for start in starts} == {None}


class Walked:
    """The table entries that walks have read in one file."""

    def __init__(self, image: Image, *svmas: int) -> None:
        sources = open_sources(image.file, image.file.arch, tuple(READERS), Diagnostics()) if image.file.arch else []
        self.tables = FileTables("lib", sources, Diagnostics(), tuple)
        for svma in svmas:
            assert self.tables.function(svma, exact=True) is not None

    def known_start(self, image: Image, svma: int, names: Collection[str]) -> int | None:
        rows = self.tables.decoded(svma, names)
        return None if rows is None else rows.start


def test_without_time_functions_that_a_walk_has_read_have_their_starts(tmp_path: Path) -> None:
    image, starts, _ = opened(tmp_path / "lib.so", "-fasynchronous-unwind-tables")
    first, second = sorted(starts)[:2]
    find = FunctionStarts()
    assert find(image, BIAS + first, known_only=True) is None
    find.walked = Walked(image, first)
    assert find(image, BIAS + first + 2, known_only=True) == first
    assert find(image, BIAS + second, known_only=True) is None
    assert find(image, BIAS + second) == second


def test_exception_tables_of_arm_that_a_walk_has_read_name_no_function(tmp_path: Path) -> None:
    image, starts, _ = opened(tmp_path / "lib.so", "-funwind-tables", compiler="arm-linux-gnueabihf-gcc")
    find = FunctionStarts()
    find.walked = Walked(image, *starts)
    assert {find(image, BIAS + start, known_only=True) for start in starts} == {None}


def test_function_without_a_table_has_its_start_once_its_code_is_analysed(tmp_path: Path) -> None:
    image, starts, tables = opened(tmp_path / "lib.so", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    assert tables == set()
    find = FunctionStarts()
    index = RuleIndex(X86_64, ImageStore(Diagnostics()), UnwindOptions(), Diagnostics())
    find.walked = index
    assert find(image, BIAS + starts[0] + 1) is None
    for start in starts:
        assert index.find_code(image, start) is not None
    assert {find(image, BIAS + start + 1) for start in starts} == set(starts)
