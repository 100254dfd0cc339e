"""Tests of a kernel that refuses the BPF program.

One message names the source line, and auto uses another collector.
"""

from __future__ import annotations

import errno
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

import pyprof
from pyprof.collectors.bpf import kernel_program
from pyprof.collectors.bpf.bpf_object import ProgramRefused
from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets, read_program
from pyprof.collectors.linux import bpf_syscall, libc
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.model.profile import Profile
from tests.interpreters.pythons import HERE, running
from tests.live.support import recording as native
from tests.live.support.ladders import ladder
from tests.live.support.recording import names, watched

pytestmark = [pytest.mark.live, pytest.mark.system]

_CALL, _PROG_LOAD = 0x85, 5
_KTIME, _NO_HELPER = 5, 9999
REASON = "invalid func unknown#9999 (at: u64 began = ktime_get_ns(); @ sampler.bpf.c:"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock helper of all programs by the number of a helper that no kernel has."""
    known, unknown = (struct.pack("<BBhi", _CALL, 0, 0, number) for number in (_KTIME, _NO_HELPER))
    broken = read_program().replace(known, unknown)
    assert broken != read_program()
    monkeypatch.setattr(kernel_program, "read_program", lambda: broken)


@pytest.mark.usefixtures("refused")
def test_refusal_is_one_sentence_with_the_line_of_the_source() -> None:
    with pytest.raises(ProgramRefused) as error:
        BpfSampler(KernelTargets(99), 1 << 20, list_online_cpus())
    said = error.value
    assert said.message.startswith("The kernel refuses the program sample: Invalid argument; its verifier says: ")
    assert REASON in said.message
    assert said.message.count("\n") == 0
    assert re.search(r"processed \d+ insns", said.log)
    assert said.hint


def test_signals_that_come_while_the_verifier_works_are_no_refusal() -> None:
    """Send signals during verification, which then fails with EAGAIN, at each attempt except one with blocked
    signals.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: came.append(1))
    try:
        for delay_s in (0.005, 0.01, 0.02):
            signal.setitimer(signal.ITIMER_REAL, delay_s, 0.002)
            BpfSampler(KernelTargets(99), 1 << 20, list_online_cpus()).close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came


class Interrupting:
    """bpf(2) whose verifier is interrupted at a number of loads, as by stops of another tool."""

    def __init__(self, loads: int) -> None:
        self.left = loads

    def bpf(self, command: int, attr: bytearray) -> int:
        if command == _PROG_LOAD and self.left:
            self.left -= 1
            return -errno.EAGAIN
        return libc.bpf(command, attr)


def test_program_is_loaded_although_stops_interrupt_many_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf_syscall, "libc", Interrupting(20))
    BpfSampler(KernelTargets(99), 1 << 20, list_online_cpus()).close()


def test_message_names_stops_that_interrupt_every_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf_syscall, "libc", Interrupting(1_000_000_000))
    monkeypatch.setattr(bpf_syscall, "_LOAD_TIMEOUT_S", 0.01)
    with pytest.raises(ProgramRefused, match="another profiler or a debugger stops pyprof too often"):
        BpfSampler(KernelTargets(99), 1 << 20, list_online_cpus())


@pytest.mark.usefixtures("refused")
def test_whoever_asks_for_it_hears_that_sentence() -> None:
    with running(HERE, "calls.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ProgramRefused, match="its verifier says"):
            pyprof.attach(process.pid, collector="bpf")


def has_python(profile: Profile) -> bool:
    return any("<module>" in frame for path in names(profile) for frame in path)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("mode", ["cpu", "offcpu", "wall"])
def test_auto_records_by_other_means_and_says_why(mode: str) -> None:
    with running(HERE, "calls.py", "1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        # perf_events records only native functions for waits
        enough = has_python if mode != "offcpu" else lambda profile: bool(names(profile))
        profile = watched(process.pid, enough, mode=mode)
    how, *notes = (note.text for note in profile.summary.notes)
    assert how.startswith("Sampled by ")
    assert "(BPF)" not in how
    assert sum(REASON in note for note in notes) == 1, notes
    assert not any("--collector" in note for note in notes)
    assert mode == "offcpu" or has_python(profile)


@pytest.mark.usefixtures("refused")
def test_refusal_in_the_middle_of_a_recording_is_said_as_well() -> None:
    """Let a shell exec Python during the recording, which makes the recorder load the BPF program."""
    code = "print('ready', flush=True)\nwhile True: sum(range(1000))"
    shell = f'read go; exec {sys.executable} -c "$0"'
    with subprocess.Popen(["sh", "-c", shell, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            with pyprof.attach(process.pid) as recording:
                process.stdin.write(b"go\n")
                process.stdin.flush()
                process.stdout.readline()
                end = time.monotonic() + 30
                while time.monotonic() < end and not has_python(recording.peek()):
                    time.sleep(0.1)
                profile = recording.stop()
        finally:
            process.kill()
    assert has_python(profile)
    assert sum(REASON in note.text for note in profile.summary.notes) == 1, profile.summary.notes


@pytest.mark.usefixtures("refused")
def test_thread_with_second_stacks_is_stopped_then_and_both_are_said() -> None:
    with native.running(ladder("ladder_altstack"), "spin", native.LIFE) as program:
        profile = watched(program.pid, lambda profile: profile.summary.stops.count > 20, rate=299)
    notes = [note.text for note in profile.summary.notes]
    assert profile.summary.stops.count > 20
    assert any(note.startswith("Stopped for their samples: 1 thread") for note in notes), notes
    assert sum(REASON in note for note in notes) == 1, notes
