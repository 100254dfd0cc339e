"""Tests of the PROCMAP_QUERY ioctl against the text of /proc/PID/maps."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.collectors.linux.procmap_query import (
    Answer,
    MapQuery,
    make_guarded_reader,
    make_maps_reader,
    pack_executable_vmas,
    query_vma,
)
from pyprof.model.address_space import Mapping

pytestmark = [pytest.mark.live, pytest.mark.system]


def kernel_knows() -> bool:
    fd = os.open("/proc/self/maps", os.O_RDONLY)
    try:
        query_vma(fd, id(None))
    except OSError as error:
        return error.errno != errno.ENOTTY
    finally:
        os.close(fd)
    return True


before_6_11 = pytest.mark.xfail(not kernel_knows(), reason="the kernel has no PROCMAP_QUERY", strict=True)


@pytest.fixture
def own() -> Iterator[MapQuery]:
    query = MapQuery(lambda: os.open("/proc/self/maps", os.O_RDONLY))
    yield query
    query.close()


def own_mappings() -> tuple[Mapping, ...]:
    return parse_maps(Path("/proc/self/maps").read_bytes())


def map_code(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)


@before_6_11
def test_every_mapping_of_the_text_is_answered_alike(own: MapQuery) -> None:
    mappings = own_mappings()
    assert own.check_all_mappings(pack_executable_vmas(mappings)) is Answer.SAME
    code = next(m for m in mappings if m.executable)
    assert own.check_mapping_at(code.start + 1, pack_executable_vmas(mappings)) is Answer.NEAR
    fd = os.open("/proc/self/maps", os.O_RDONLY)
    try:
        for m in mappings:
            if m.path not in ("[vsyscall]", "[stack]", "[heap]") and m.inode:
                assert query_vma(fd, m.start)[:4] == (m.start, m.end, m.offset, m.inode)
    finally:
        os.close(fd)


@before_6_11
def test_code_that_came_and_code_that_went_is_a_change(own: MapQuery, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_bytes(b"\x90" * mmap.PAGESIZE)
    before = pack_executable_vmas(own_mappings())
    code = map_code(library)
    assert own.check_all_mappings(before) is Answer.CHANGED
    after = pack_executable_vmas(own_mappings())
    (came,) = set(after) - set(before)
    assert own.check_mapping_at(came[0], before) is Answer.CHANGED
    assert own.check_mapping_at(before[0][0], before) is Answer.NEAR
    assert own.check_mapping_at(before[0][0] - 1, before) is Answer.CHANGED
    code.close()
    assert own.check_all_mappings(after) is Answer.CHANGED
    assert own.check_all_mappings(before) is Answer.SAME


@before_6_11
def test_after_an_exec_the_image_that_was_asked_about_is_gone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import os; os.write(1, b'ready\\n'); os.read(0, 3); os.execv('/bin/cat', ['cat'])"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        directory = ProcDir(child.pid)
        query = MapQuery(lambda: directory.open("maps"))
        before = pack_executable_vmas(parse_maps(directory.maps()))
        assert query.check_mapping_at(before[0][0], before) is Answer.NEAR
        child.stdin.write(b"go\nand tell\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"and tell\n"
        assert query.check_all_mappings(before) is Answer.REPLACED
        query.reopen_maps()
        assert query.check_all_mappings(pack_executable_vmas(parse_maps(directory.maps()))) is Answer.SAME
        query.close()
        directory.close()
        child.stdin.close()


def test_without_a_descriptor_nothing_is_known() -> None:
    def gone() -> int:
        raise ProcessLookupError

    assert MapQuery(gone).check_mapping_at(0x1000, ()) is Answer.UNKNOWN
    query = MapQuery(lambda: os.open("/dev/null", os.O_RDONLY))  # the ioctl fails as on an older kernel
    assert query.check_all_mappings(()) is Answer.UNKNOWN
    assert query.check_all_mappings(()) is Answer.UNKNOWN


def test_memory_of_a_file_is_read_only_while_it_is_the_same_file_there(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"1" * mmap.PAGESIZE)
    other.write_bytes(b"2" * mmap.PAGESIZE)
    read = memory_reader(os.getpid(), lambda: True)
    code = map_code(one)
    then = own_mappings()
    place = next(m for m in then if m.path == str(one))
    guarded_read = make_guarded_reader(read, make_maps_reader(os.getpid()), then)
    assert guarded_read(place.start, 4) == b"1111"
    code.close()
    assert guarded_read(place.start, 4) == b""
    pretended = Mapping(place.start, place.end, "r-xp", 0, place.dev, place.inode + 1, "other")
    code = map_code(one)
    again = next(m for m in own_mappings() if m.path == str(one))
    moved = Mapping(again.start, again.end, "r-xp", 0, pretended.dev, pretended.inode, "other")
    assert make_guarded_reader(read, make_maps_reader(os.getpid()), (moved,))(again.start, 4) == b""
    assert make_guarded_reader(read, make_maps_reader(os.getpid()), (again,))(again.start, 4) == b"1111"
    elsewhere = Mapping(0x1000, 0x2000, "r-xp", 0, again.dev, again.inode, again.path)
    assert make_guarded_reader(read, make_maps_reader(os.getpid()), (elsewhere,))(again.start, 4) == b"1111"
    assert make_guarded_reader(read, make_maps_reader(os.getpid()), ())(again.start, 4) == b""
    buffer = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer[:4] = b"4444"
    at = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    assert make_guarded_reader(read, make_maps_reader(os.getpid()), ())(at, 4) == b"4444"
    code.close()


@pytest.mark.parametrize("avma", [-1, 1 << 64, (1 << 64) + 23])
def test_invalid_address_is_not_mapped(avma: int) -> None:
    fd = os.open("/proc/self/maps", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="no address") as found:
            query_vma(fd, avma)
    finally:
        os.close(fd)
    assert found.value.errno == errno.ENOENT
    assert make_guarded_reader(lambda _, size: bytes(size), make_maps_reader(os.getpid()), ())(avma, 8) == b""
