"""Tests of loading the BPF program.

Its structures match the reader, verification is cheap, and nothing stays loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import time
from pathlib import Path

import pytest

from pyprof.collectors.bpf import ring_buffer_records as abi
from pyprof.collectors.bpf.bpf_object import BpfObject, find_member_offset, read_kernel_types
from pyprof.collectors.bpf.kernel_program import (
    KINDS,
    OF_WAITS,
    BpfSampler,
    KernelTargets,
    choose_ring_size,
    read_program,
)
from pyprof.collectors.combined.planner import collect_facts
from pyprof.collectors.linux import libc, procfs
from pyprof.collectors.linux.sampled_arch import PERF_ARCHES
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.collectors.sampling_source_plan import BPF, find_refusal
from pyprof.errors import FormatError
from pyprof.options import CollectOptions
from tests.live.support.recording import PYPROF
from tests.support import build

pytestmark = pytest.mark.system

FOLDER = Path(__file__).resolve().parent.parent.parent / "collectors" / "bpf"
_NEXT_PROGRAM, _NEXT_MAP = 11, 12
"""Commands of bpf(2): BPF_PROG_GET_NEXT_ID and BPF_MAP_GET_NEXT_ID."""
_TARGETS = {"x86_64": "", "aarch64": "#define __TARGET_ARCH_arm64\n"}
MAX_VERIFIED, MAX_OF_WAITS = 50_000, 100_000
"""Maximum number of verified instructions, in general and for waits with greenlets or tasks.

The kernel's own limit is one million.
"""


@pytest.mark.parametrize("machine", PERF_ARCHES)
def test_layouts_are_those_of_the_header(machine: str, tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    reasons = ", ".join(reason.name for reason in abi.LossReason)
    source.write_text(
        f'{_TARGETS[machine]}#include <stdio.h>\n#include "{FOLDER}/sampler.h"\n'
        "int main(void) {\n"
        'printf("%zu %zu %zu %zu %zu %zu %zu %zu\\n", sizeof(struct record), sizeof(struct frame),'
        " sizeof(struct anchor), sizeof(struct layout), sizeof(struct process), sizeof(struct thread),"
        " sizeof(struct stack_key), sizeof(struct sent_pages));\n"
        f"int reasons[] = {{{reasons}, REASONS}};\n"
        'for (unsigned n = 0; n < sizeof reasons / sizeof *reasons; n++) printf("%d ", reasons[n]);\n'
        'printf("\\n%d %d %d %d", MOST_STACK, PAGE, REGISTERS, STACK_SLACK);\n'
        + "".join(f'printf(" %d", FLAG_{flag.name});\n' for flag in abi.Flag)
        + "return 0; }\n"
    )
    text = subprocess.check_output([str(build(source, tmp_path / "layout"))], text=True, timeout=20)
    sizes, order, values = text.splitlines()
    registers = len(PERF_ARCHES[machine].wide.registers)
    words = (abi.HEAD_WORDS - abi.REGISTERS + registers, abi.FRAME_WORDS, abi.ANCHOR_WORDS)
    assert [int(size) for size in sizes.split()] == [
        *(8 * count for count in words),
        abi.LAYOUT.size,
        abi.PROCESS.size,
        abi.THREAD.size,
        abi.STACK_KEY.size,
        8 * abi.SENT_WORDS,
    ]
    assert [int(value) for value in order.split()] == list(range(len(abi.LossReason) + 1))
    assert [int(value) for value in values.split()] == [
        abi.MOST_STACK,
        abi.PAGE,
        registers,
        abi.STACK_SLACK,
        *abi.Flag,
    ]


@pytest.mark.parametrize("tasks", [False, True])
@pytest.mark.parametrize(("waits", "seeks"), [(False, True), (True, False), (True, True)])
def test_kernel_takes_it_after_little_work(waits: bool, seeks: bool, tasks: bool) -> None:
    loaded = BpfObject(read_program(), "sampler.o")
    loaded.set_constant("seeks_waiting", struct.pack("=I", seeks))
    loaded.set_constant("follows_tasks", struct.pack("=I", tasks))
    loaded.set_constant("wakers", struct.pack("=I", waits))
    try:
        logs = loaded.load(KINDS | OF_WAITS if waits else KINDS, log_level=4)
        assert set(loaded.programs) == {
            "sample",
            "forked",
            "executed",
            "exits",
            *(["switched", "woken"] if waits else []),
        }
        for section, log in logs.items():
            (count,) = re.findall(r"processed (\d+) insns", log)
            assert 0 < int(count) < (MAX_OF_WAITS if waits and (seeks or tasks) else MAX_VERIFIED), section
    finally:
        loaded.close()


def held(pid: int, kind: str) -> set[int]:
    """Return the ids of the programs (prog_id) or maps (map_id) to which a process has file descriptors."""
    texts = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            texts.append(path.read_text())
    return {int(found[1]) for text in texts if (found := re.search(rf"^{kind}:\s+(\d+)", text, re.MULTILINE))}


def in_kernel(command: int) -> set[int]:
    """Return the ids of all programs or of all maps in the kernel."""
    found: set[int] = set()
    at = 0
    while True:
        attr = bytearray(struct.pack("=III", at, 0, 0))
        if libc.bpf(command, attr) < 0:
            return found
        at = struct.unpack_from("=I", attr, 4)[0]
        found.add(at)


def gone(programs: set[int], maps: set[int]) -> bool:
    """Wait until the kernel has freed these programs and maps, which it does some time after the last descriptor is
    closed.
    """
    end = time.monotonic() + 20
    while (programs & in_kernel(_NEXT_PROGRAM) or maps & in_kernel(_NEXT_MAP)) and time.monotonic() < end:
        time.sleep(0.05)
    return not programs & in_kernel(_NEXT_PROGRAM) and not maps & in_kernel(_NEXT_MAP)


def test_nothing_stays_in_the_kernel() -> None:
    other_programs, other_maps = held(os.getpid(), "prog_id"), held(os.getpid(), "map_id")  # of tests before this one
    sampler = BpfSampler(KernelTargets(99), 1 << 20, list_online_cpus())
    programs, maps = held(os.getpid(), "prog_id") - other_programs, held(os.getpid(), "map_id") - other_maps
    assert len(programs & in_kernel(_NEXT_PROGRAM)) >= 3
    assert len(maps & in_kernel(_NEXT_MAP)) >= 8
    sampler.close()
    del sampler  # also drops its mapping of the ring
    assert gone(programs, maps)


@pytest.mark.parametrize("mode", ["cpu", "offcpu"])
def test_nothing_stays_of_a_recording_that_is_killed(mode: str, tmp_path: Path) -> None:
    command = ["record", "--collector", "bpf", "--mode", mode, "-p", str(os.getpid()), "-o", str(tmp_path / "out.json")]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        [*PYPROF, *command],
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,  # no front process
    ) as recording:
        end = time.monotonic() + 30
        while len(programs := held(recording.pid, "prog_id")) < (3 if mode == "cpu" else 5) and time.monotonic() < end:
            time.sleep(0.05)
        maps = held(recording.pid, "map_id")
        assert programs <= in_kernel(_NEXT_PROGRAM)
        assert len(maps & in_kernel(_NEXT_MAP)) >= 8
        recording.kill()
    assert gone(programs, maps)


def test_whoever_has_no_rights_is_told_which_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read_thread_status", lambda tid: {"CapEff": f"{1 << 39:x}"})
    options = CollectOptions()
    refusal = find_refusal(BPF, collect_facts((0,), options), options)
    assert refusal is not None
    assert "CAP_PERFMON" in refusal.message
    monkeypatch.setattr(procfs, "read_thread_status", lambda tid: {"CapEff": f"{1 << 39 | 1 << 38:x}"})
    assert find_refusal(BPF, collect_facts((0,), options), options) is None


def test_rings_hold_a_quarter_of_a_second_and_at_most_2_mb_a_processor() -> None:
    assert choose_ring_size(KernelTargets(99), 2) == 16 << 20
    assert choose_ring_size(KernelTargets(999), 2) == 32 << 20
    assert choose_ring_size(KernelTargets(9999), 16) == 32 << 20
    assert choose_ring_size(KernelTargets(99), 64) == 128 << 20
    assert choose_ring_size(KernelTargets(0, waits=True), 2) == 64 << 20
    assert choose_ring_size(KernelTargets(9999), 256) == 256 << 20


def test_offset_of_a_field_is_found_in_the_kernels_types() -> None:
    types = read_kernel_types()
    assert (
        0 < find_member_offset(types, "task_struct", "pid") < find_member_offset(types, "task_struct", "tgid") < 1 << 16
    )
    with pytest.raises(FormatError):
        find_member_offset(types, "task_struct", "no_such_field")
    with pytest.raises(FormatError):
        find_member_offset(b"\0" * 64, "task_struct", "pid")
    with pytest.raises(FormatError, match="past the end"):
        find_member_offset(types[:4097], "task_struct", "pid")


def btf(*records: list[int], names: list[str]) -> bytes:
    """Return BTF type information of these records.

    A name in a record is the offset of its first letter: see name().
    """
    types = b"".join(struct.pack(f"<{len(record)}I", *record) for record in records)
    strings = "\0".join(["", *names, ""]).encode()
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + strings


def test_field_of_an_anonymous_structure_inside_another_is_found() -> None:
    names = ["outer", "first", "inside", "other"]
    outer, first, inside, other = (len("\0".join(["", *names[:n], ""])) for n in range(4))
    head = 4 << 24 | 2  # BTF_KIND_STRUCT with two members of one word
    records = (
        [outer, head, 32, first, 1, 0, 0, 3, 64],
        [other, head, 16, first, 1, 0, inside, 1, 64],
        [0, head, 16, first, 1, 0, inside, 1, 64],
    )
    assert find_member_offset(btf(*records, names=names), "outer", "inside") == 8 + 8
    assert find_member_offset(btf(*records, names=names), "outer", "first") == 0
    assert find_member_offset(btf(*records, names=names), "other", "inside") == 8
    with pytest.raises(FormatError, match=r"no outer\.inside"):
        find_member_offset(btf(*records[:2], names=names), "outer", "inside")
