"""Tests of the parsers of /proc files with hostile input."""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.interrupted_syscalls import can_survive_stop, parse_syscall
from pyprof.collectors.linux.procfs import parse_maps, parse_stat
from pyprof.errors import FormatError
from pyprof.model.address_space import MAX_MAPPINGS, AddressSpace
from pyprof.model.arch import X86_64

pytestmark = [pytest.mark.live, pytest.mark.system]

MAPS = Path("/proc/self/maps").read_bytes()
STAT = Path("/proc/self/stat").read_bytes()


def test_maps_of_this_process_are_read_whole() -> None:
    mappings = parse_maps(Path("/proc/self/maps").read_bytes())
    assert any(m.path == "[stack]" and m.perms == "rw-p" for m in mappings)
    assert any(m.executable and m.path.endswith(".so.6") for m in mappings)
    assert all(a.end <= b.start for a, b in itertools.pairwise(mappings))


@pytest.mark.parametrize(
    "name",
    [
        b"a\nb",
        b"7f0000000000-7f0000001000 r-xp 00000000 00:00 0",
        b"x\n7f00-7f01 r-xp 0 00:00 0 y",
        b"bad \xff\xfe utf8",
        b"  blanks  ",
        b"tab\tx",
        b"[vdso]",
    ],
)
def test_hostile_file_names_come_back_as_they_are(tmp_path: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "wb") as file:
        file.write(bytes(4096))
    with open(path, "rb") as made, mmap.mmap(made.fileno(), 4096, prot=mmap.PROT_READ):
        mappings = parse_maps(Path("/proc/self/maps").read_bytes())
    assert os.fsdecode(path) in {m.path for m in mappings}


def test_a_deleted_file_keeps_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    path.write_bytes(bytes(4096))
    with open(path, "rb") as made, mmap.mmap(made.fileno(), 4096, prot=mmap.PROT_READ):
        path.unlink()
        mappings = parse_maps(Path("/proc/self/maps").read_bytes())
    assert f"{path} (deleted)" in {m.path for m in mappings}


def test_overlapping_lines_are_dropped_because_the_file_is_written_in_pages() -> None:
    text = b"1000-3000 rw-p 00000000 00:00 0 \n2000-4000 rw-p 00000000 00:00 0 \n4000-5000 r--p 00000000 00:00 0 \n"
    assert [(m.start, m.end) for m in parse_maps(text)] == [(0x1000, 0x3000), (0x4000, 0x5000)]


@pytest.mark.parametrize(
    ("text", "offset"),
    [(b"nonsense", 0), (b"1000-2000 r-xp 0 00:00 0 \nzz", 26), (b"3000-2000 r-xp 0 00:00 0 /x", 0)],
)
def test_a_line_that_no_kernel_writes_is_an_error_with_its_offset(text: bytes, offset: int) -> None:
    with pytest.raises(FormatError) as caught:
        parse_maps(text)
    assert caught.value.offset == offset


def mutated(original: bytes) -> st.SearchStrategy[bytes]:
    changes = st.lists(st.tuples(st.integers(0, len(original) - 1), st.binary(max_size=4)), max_size=8)

    def apply(edits: list[tuple[int, bytes]]) -> bytes:
        text = bytearray(original)
        for at, new in edits:
            text[at : at + 1] = new
        return bytes(text)

    return changes.map(apply)


@given(st.one_of(st.binary(max_size=300), mutated(MAPS)))
def test_any_bytes_are_mappings_in_order_or_a_format_error(text: bytes) -> None:
    with contextlib.suppress(FormatError):
        mappings = parse_maps(text)
        assert all(a.end <= b.start for a, b in itertools.pairwise(mappings))


@given(st.one_of(st.binary(max_size=200), mutated(STAT)))
def test_any_bytes_are_a_stat_line_or_a_format_error(text: bytes) -> None:
    with contextlib.suppress(FormatError):
        assert parse_stat(text).ppid is not None


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields() -> None:
    stat = parse_stat(STAT.replace(STAT[STAT.find(b"(") : STAT.rfind(b")") + 1], b"(a) R 1 (b c)"))
    assert (stat.comm, stat.ppid) == ("a) R 1 (b c", os.getppid())


def test_first_stack_begins_below_the_programs_arguments() -> None:
    (stack,) = (m for m in parse_maps(Path("/proc/self/maps").read_bytes()) if m.path == "[stack]")
    assert stack.start < parse_stat(Path("/proc/self/stat").read_bytes()).stack < stack.end


def test_kernel_threads_and_zombies_are_told_apart() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert procfs.ProcDir(child.pid).stat().is_zombie
        assert not procfs.ProcDir(child.pid).stat().is_kernel_thread
    mine = procfs.ProcDir(os.getpid())
    assert not mine.stat().is_zombie
    assert mine.stat().ppid == os.getppid()
    mine.close()


def test_a_recycled_pid_is_not_mistaken_for_the_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        directory = procfs.ProcDir(child.pid)
        assert directory.threads() == [child.pid]
        child.kill()
        child.wait()
    for look in (directory.threads, directory.maps, directory.stat, directory.thread_count, directory.comm):
        with pytest.raises(ProcessLookupError):
            look()
    directory.close()
    directory.close()


def test_memory_reads_end_where_the_memory_does() -> None:
    read = procfs.make_memory_reader(os.getpid())
    space = procfs.read_address_space(os.getpid(), 1, 0)
    vdso = next(m for m in space.mappings if m.path == "[vdso]")
    assert read(vdso.start, 4) == b"\x7fELF"
    last = next(a for a, b in itertools.pairwise(space.mappings) if "r" in a.perms and a.end < b.start)
    assert len(read(last.end - 8, 100)) == 8
    assert read(0, 8) == read(2**64 - 8, 8) == read(-1, 8) == read(vdso.start, 0) == b""
    assert space.root == f"/proc/{os.getpid()}/root"


@given(st.one_of(st.binary(max_size=100), mutated(b"202 0x7f00 0x80 0x0 0x0 0x0 0x0 0x7ffd28d1c448 0x7f578c05b2ad\n")))
def test_any_syscall_line_is_a_call_or_none(line: bytes) -> None:
    with contextlib.suppress(FormatError):
        call = parse_syscall(line)
        assert call is None or can_survive_stop(call, os.getpid(), X86_64) in (True, False)


def maps_text(permissions: Sequence[str]) -> bytes:
    """Return text of /proc/PID/maps with a one-page mapping for each of these permissions, separated by gaps."""
    lines = (f"{at << 13:x}-{(at << 13) + 4096:x} {each} 0 fe:00 {at + 1} /a\rb" for at, each in enumerate(permissions))
    return "".join(f"{line} padded to the usual length\n" for line in lines).encode()


def test_maps_with_too_many_lines_keep_those_near_code_and_the_writable_ones() -> None:
    permissions = ["r--p"] * (2 * MAX_MAPPINGS)
    permissions[20_000], permissions[100], permissions[-1] = "r-xp", "rw-p", "r-xs"
    found = [mapping.inode - 1 for mapping in procfs.parse_maps(maps_text(permissions))]
    assert found == [100, *range(20_000 - 8, 20_000 + 9), *range(len(permissions) - 9, len(permissions))]


@pytest.mark.parametrize("each", ["r-xp", "rw-p"])
def test_maps_with_too_many_lines_that_matter_keep_the_first_and_the_last(each: str) -> None:
    found = procfs.parse_maps(maps_text([each] * (MAX_MAPPINGS + 2)))
    inodes = [mapping.inode for mapping in found]
    half = MAX_MAPPINGS // 2
    assert inodes == [*range(1, half + 1), *range(half + 3, MAX_MAPPINGS + 3)]
    assert not AddressSpace(1, 1, 0, found, lambda avma, size: b"", "").complete


def test_maps_within_the_bound_are_parsed_as_a_whole() -> None:
    found = procfs.parse_maps(maps_text(["r--p"] * (MAX_MAPPINGS - 1)))
    assert len(found) == MAX_MAPPINGS - 1
    assert AddressSpace(1, 1, 0, found, lambda avma, size: b"", "").complete


@pytest.mark.parametrize(
    ("load", "contention"),
    [(b"23.7 26.0 21.4 24/413 9730\n", 6.0), (b"0.0 0.0 0.0 1/100 7\n", 0.25), (b"lxcfs has another format\n", 0.0)],
)
def test_contention_is_the_number_of_runnable_tasks_of_a_processor(
    load: bytes, contention: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "open", lambda *_: io.BytesIO(load), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert procfs.read_cpu_contention() == contention
