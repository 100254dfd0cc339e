"""Fuzz tests of object files: only FormatError, in bounded time and memory."""

from __future__ import annotations

import resource
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.objfile.debug_files import read_debug_link
from pyprof.objfile.elf_file import ElfFile
from tests.objfile.live import library, where

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

Change = tuple[int, int]


def changed(data: bytes, changes: list[Change], cut: int | None) -> bytes:
    """Return the data with bytes overwritten and the end cut off.

    Args:
        data: The original file.
        changes: (offset, value) of each changed byte.
        cut: New length, or None.
    """
    mutated = bytearray(data)
    for place, value in changes:
        mutated[place % len(mutated)] = value
    return bytes(mutated if cut is None else mutated[: cut % len(mutated)])


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("fuzz")
    files = [library(folder, "lib.so", "-g", "-gz"), where(folder, "where", "-rdynamic", "-s", "-Wl,--hash-style=gnu")]
    whole = [path.read_bytes() for path in files]
    bare = bytearray(whole[1])
    bare[40:48] = bytes(8)
    bare[60:64] = bytes(4)
    return [*whole, bytes(bare)]


def use_everything(data: bytes) -> None:
    elf = ElfFile.from_bytes(data, "fuzz")
    _ = elf.build_id
    read_debug_link(elf)
    for segment in elf.segments[:50]:
        assert len(elf.at_svma(segment.vaddr, 64)) <= 64
    for name in list(elf.sections)[:100]:
        with suppress(FormatError):
            content = elf.section(name)
            assert content is None or len(content) > 0


headers = st.integers(0, 1023)
anywhere = st.integers(0, 1 << 20)
from_end = st.integers(-4096, -1)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 2),
    changes=st.lists(st.tuples(st.one_of(headers, anywhere, from_end), st.integers(0, 255)), max_size=12),
    cut=st.one_of(st.none(), anywhere),
)
def test_mutated_files_raise_only_format_errors(
    originals: list[bytes], which: int, changes: list[Change], cut: int | None
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(FormatError):
        use_everything(changed(originals[which], changes, cut))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_behind_the_magic_raise_only_format_errors(data: bytes) -> None:
    for ident in (b"\x02\x01", b"\x01\x02", b"\x02\x02"):
        with suppress(FormatError):
            use_everything(b"\x7fELF" + ident + b"\x01" + bytes(9) + data)


def test_originals_are_used_without_error(originals: list[bytes]) -> None:
    for data in originals:
        use_everything(data)
