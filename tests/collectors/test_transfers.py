"""Tests that short transfers caused by stops are counted by system call."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.interrupted_syscalls import ShortCall, can_end_by_itself, parse_short_call
from pyprof.collectors.linux.stopped_registers import Regset
from pyprof.collectors.ptrace import sampling_loop
from pyprof.model.arch import I386, X86_64, Arch
from pyprof.model.sample_batch import SampleKind
from tests.chance import most
from tests.collectors.conftest import Start
from tests.collectors.stopping import stopping
from tests.collectors.targets import MAX_S, Recording, record, stops, wait_asleep
from tests.collectors.transfers import counted, shorts

pytestmark = [pytest.mark.live, pytest.mark.system]

OUT = ("write", "writev", "send", "sendmsg", "sendmmsg", "nonblock")
REST = ("recv", "recvmsg", "read", "zero", "getrandom", "sendfile", "copy_file_range", "splice", "eof")
NONE = (0, 0, 0)
WAITALL, DONTWAIT = socket.MSG_WAITALL, socket.MSG_DONTWAIT


@pytest.mark.parametrize("kinds", [OUT, REST], ids=("out", "rest"))
def test_each_call_that_a_stop_cut_short_is_counted(
    program: Start, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_loop, "TRANSFERRING", 1)
    target = program("c_transfers", "0", *kinds)
    recording = record(target.pid, stops(500), rate_hz=1000, keep=False)
    found = counted(recording.diagnostics.counts)
    assert found == shorts(target.finish())
    assert found.total() > 50


def some_seldom(recording: Recording) -> bool:
    """Return True if there are enough samples to tell one sample a round from one in 64 rounds."""
    assert recording.stats is not None
    weights = [lane.weight for lane in recording.lanes]
    return recording.stats.ticks >= 600 and max(weights, default=0) >= sampling_loop.TRANSFERRING


def test_a_thread_whose_call_was_cut_short_is_stopped_seldom_from_then_on(program: Start) -> None:
    target = program("c_transfers", "0", "write")
    recording = record(target.pid, some_seldom, rate_hz=1000)
    found = counted(recording.diagnostics.counts)
    assert found == shorts(target.finish())
    assert recording.stats is not None
    weights = [lane.weight for lane in recording.lanes if lane.kind == SampleKind.STOPPED]
    first = next(i for i, weight in enumerate(weights) if weight >= sampling_loop.TRANSFERRING)
    assert min(weights[first:]) >= sampling_loop.TRANSFERRING
    seldom = most(1 / sampling_loop.TRANSFERRING, recording.stats.ticks)
    assert len(weights) - first <= seldom
    assert found["write"] <= seldom + 1
    assert any("1 thread short" in note.text for note in recording.stats.notes)


def test_without_stops_no_call_is_short(program: Start) -> None:
    target = program("c_transfers", "0", *OUT, *REST)
    time.sleep(0.5)
    assert shorts(target.finish()).total() == 0


def test_calls_of_threads_that_are_let_go_without_a_sample_are_counted(program: Start) -> None:
    target = program("c_transfers", "0", "write")
    (writer,) = {int(task.name) for task in Path(f"/proc/{target.pid}/task").iterdir()} - {target.pid}
    deadline = time.monotonic() + MAX_S
    with stopping(target.pid) as here:
        while counted(here.diagnostics.counts).total() < 20:
            assert time.monotonic() < deadline
            assert libc.seize(writer) == 0
            here.stopper.stopped_threads[writer] = here.held(writer)
            here.stopper.release_all()
        found = counted(here.diagnostics.counts)
    assert found == shorts(target.finish())


def test_call_that_the_kernel_will_make_again_is_no_short_one(child: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Interrupt the thread just before it returns to user space."""
    target = child(["yes"], stdout=subprocess.PIPE)
    tid = target.pid
    wait_asleep(tid)
    with stopping(tid) as here:
        stopper = here.stopper
        assert libc.seize(tid) == 0
        stopper.stopped_threads[tid] = here.held(tid)
        assert libc.interrupt(tid) == 0
        here.wait_stop(tid)
        assert stopper.ptrace.read_registers(tid) == X86_64.kernel.regset_size
        regset = Regset(X86_64, stopper.ptrace)
        assert (regset.call, regset.broken_off) == (X86_64.kernel.syscalls["write"], True)
        regset.begin_again(regset.call, len(X86_64.kernel.syscall_codes[0]))  # restarts the call as the kernel does
        with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
            assert regset.was_asleep(lambda avma, size: os.pread(memory.fileno(), size, avma))
        assert stopper.ptrace.write_registers(tid, X86_64.kernel.regset_size) == 0
        stopper.release_all()
        assert not counted(here.diagnostics.counts)
    assert target.stdout is not None
    with target.stdout:
        assert target.stdout.read(1 << 20) == b"y\n" * (1 << 19)


@pytest.mark.parametrize(
    ("arch", "call", "args", "done", "memory", "short"),
    [
        (X86_64, "write", (1, 0, 100), 100, b"", False),
        (X86_64, "write", (1, 0, 100), 99, b"", True),
        (X86_64, "write", (1, 0, 1 << 40), 0x7FFF_F000, b"", False),  # the kernel's maximum of one call
        (X86_64, "writev", (1, 0x1000, 2), 29, struct.pack("<4Q", 0, 10, 0, 20), True),
        (X86_64, "writev", (1, 0x1000, 2), 30, struct.pack("<4Q", 0, 10, 0, 20), False),
        (X86_64, "writev", (1, 0x1000, 2), 30, b"", True),  # the requested size is unknown
        (X86_64, "sendmsg", (1, 0x1000, 0), 9, struct.pack("<6Q", 0, 0, 0x1020, 1, 0, 10), True),
        (X86_64, "sendmsg", (1, 0x1000, 0), 10, struct.pack("<6Q", 0, 0, 0x1020, 1, 0, 10), False),
        (X86_64, "sendmmsg", (1, 0x1000, (7 << 32) + 2), 2, bytes(200), False),
        (X86_64, "epoll_wait", (1, 0x1000, 8), 1, b"", False),
        (I386, "socketcall", (9, 0x1000), 99, struct.pack("<4I", 3, 0, 100, 0), True),
        (I386, "socketcall", (9, 0x1000), 100, struct.pack("<4I", 3, 0, 100, 0), False),
        (I386, "sendmsg", (1, 0x1000, 0), 9, struct.pack("<6I", 0, 0, 0x1010, 1, 0, 10), True),
    ],
)
def test_what_a_call_was_asked_for(
    arch: Arch, call: str, args: tuple[int, ...], done: int, memory: bytes, short: bool
) -> None:
    def read(avma: int, size: int) -> bytes:
        data = memory[avma - 0x1000 : avma - 0x1000 + size]
        return data if len(data) == size else b""

    found = parse_short_call(arch, os.getpid(), arch.kernel.syscalls[call], (*args, *NONE, *NONE)[:6], done, read)
    assert (found is not None) == short


def test_calls_that_are_short_by_themselves_are_none_of_ours(tmp_path: Path) -> None:
    def alone(name: str, *args: int, at: int = -1) -> bool:
        return can_end_by_itself(ShortCall(name, (*args, *NONE, *NONE)[:6], at), os.getpid())

    (out, into), (ours, theirs) = os.pipe(), socket.socketpair()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    zero = os.open("/dev/zero", os.O_RDONLY)
    os.write(file, bytes(100))
    sock = ours.fileno()
    try:
        assert not alone("write", into)
        assert not alone("write", into + (5 << 32))  # the kernel uses the low 32 bits
        assert alone("write", file)
        assert not alone("write", 9999)  # a closed descriptor tells nothing
        assert alone("read", out)
        assert alone("read", sock)
        assert not alone("read", zero)
        assert not alone("getrandom", 0, 100)
        assert alone("read", 9999)
        assert not alone("sendto", sock, 0, 100, 0)
        assert alone("sendto", sock, 0, 100, DONTWAIT)
        assert alone("recvfrom", sock, 0, 100, 0)
        assert not alone("recvfrom", sock, 0, 100, WAITALL)
        assert not alone("sendfile", sock, file, 0, 200, at=99)
        assert alone("sendfile", sock, file, 0, 200, at=100)
        assert alone("sendfile", into, file, 0, 200, at=10)
        assert not alone("splice", out, 0, sock, 0, 100, 0)
        assert alone("splice", out, 0, sock, 0, 100, 2)
        assert alone("splice", file, 0, into, 0, 100, 0)
        os.set_blocking(into, False)
        ours.setblocking(False)
        assert alone("write", into)
        assert alone("recvfrom", sock, 0, 100, WAITALL)
        assert alone("splice", out, 0, sock, 0, 100, 0)
    finally:
        for fd in (out, into, file, zero):
            os.close(fd)
        ours.close()
        theirs.close()
