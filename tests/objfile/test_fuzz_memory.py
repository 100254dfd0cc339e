"""Fuzz tests of images in memory: only FormatError, whatever the target has written there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from tests.objfile.live import library, where

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

START = 0x7F0000000000


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("memory")
    return [path.read_bytes() for path in (library(folder), where(folder, "where", "-rdynamic"))]


def space_of(memory: bytes, path: str, inode: int) -> AddressSpace:
    def read(avma: int, size: int) -> bytes:
        assert 0 <= avma < 1 << 64
        assert size >= 0
        at = avma - START
        return memory[at : at + size] if 0 <= at < len(memory) else b""

    mapping = Mapping(START, START + (len(memory) + 4095 & -4096), "r-xp", 0, "00:01", inode, path)
    return AddressSpace(1, 1 << 29, 0, (mapping,), read, "/nonexistent")


@settings(max_examples=300, deadline=None)
@given(
    which=st.integers(0, 1),
    changes=st.lists(
        st.tuples(st.one_of(st.integers(0, 1023), st.integers(0, 1 << 15)), st.integers(0, 255)), max_size=8
    ),
    vdso=st.booleans(),
)
def test_mutated_images_in_memory_are_refused_or_read(
    originals: list[bytes], which: int, changes: list[tuple[int, int]], vdso: bool
) -> None:
    memory = bytearray(originals[which])
    for place, value in changes:
        memory[place % len(memory)] = value
    space = space_of(bytes(memory), "[vdso]" if vdso else "/gone", 0 if vdso else 5)
    image = ImageStore(Diagnostics()).image(space, START + 0x1100)
    if image is None:
        return
    for name in list(image.file.sections):
        with suppress(FormatError):
            image.file.section(name)


def test_whole_image_in_memory_is_read(originals: list[bytes], tmp_path: Path) -> None:
    for memory in originals:
        image = ImageStore(Diagnostics()).image(space_of(memory, "[vdso]", 0), START + 0x1100)
        assert image is not None
        assert image.from_memory
