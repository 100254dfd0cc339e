"""Tests that system call numbers equal those of the kernel's headers and that all architectures treat calls alike."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from pyprof.collectors.linux.interrupted_syscalls import SURVIVES, BlockedCall, can_restart, can_survive_stop
from pyprof.model.arch import AARCH64, ARM, I386, RISCV64, X32, X86_64, Arch
from tests.support import need

pytestmark = [pytest.mark.matrix, pytest.mark.system]

COMPILERS = [
    (X86_64, "gcc"),
    (I386, "i686-linux-gnu-gcc"),
    (X32, "x86_64-linux-gnux32-gcc"),
    (AARCH64, "aarch64-linux-gnu-gcc"),
    (ARM, "arm-linux-gnueabihf-gcc"),
    (RISCV64, "riscv64-linux-gnu-gcc"),
]


@pytest.mark.parametrize(("arch", "compiler"), COMPILERS, ids=lambda value: getattr(value, "name", value))
def test_numbers_are_those_of_the_headers(arch: Arch, compiler: str) -> None:
    names = list(arch.kernel.syscalls)
    source = "#include <asm/unistd.h>\n" + "".join(f"=> __NR_{name}\n" for name in names)
    done = subprocess.run(
        [need(compiler), "-E", "-P", "-x", "c", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = [eval(line[2:]) for line in done.stdout.splitlines() if re.fullmatch(r"=> [0-9a-fx()+ ]+", line)]
    assert dict(zip(names, found, strict=True)) == arch.kernel.syscalls


@pytest.mark.parametrize("arch", [arch for arch, _ in COMPILERS], ids=lambda arch: arch.name)
def test_the_same_call_is_judged_the_same_way_on_each_architecture(arch: Arch) -> None:
    def survives(name: str, *args: int) -> bool:
        return can_survive_stop(
            BlockedCall(arch.kernel.syscalls[name], (*args, 0, 0, 0, 0, 0, 0)[:6], 1, 1), os.getpid(), arch
        )

    assert all(survives(name) for name in SURVIVES & arch.kernel.syscalls.keys())
    assert survives("futex", 0, 128)  # 128 is FUTEX_WAIT_PRIVATE
    assert not survives("futex", 0, 11)  # FUTEX_WAIT_REQUEUE_PI
    assert not survives("write")
    assert not survives("epoll_pwait")
    assert can_survive_stop(BlockedCall(-1, (), 1, 1), os.getpid(), arch)
    assert not can_survive_stop(BlockedCall(12345, (), 1, 1), os.getpid(), arch)
    assert can_restart(arch, arch.kernel.syscalls["epoll_pwait"], (3, 0, 0, 0, 0, 0))
    assert not can_restart(arch, arch.kernel.syscalls["epoll_pwait"], (3, 0, 0, 0, 1, 0))
    assert not can_restart(arch, arch.kernel.syscalls["nanosleep"], (0, 0, 0, 0, 0, 0))


def test_calls_that_i386_makes_through_one_number_are_told_apart() -> None:
    socketcall, ipc = I386.kernel.syscalls["socketcall"], I386.kernel.syscalls["ipc"]
    assert [can_restart(I386, socketcall, (call, 0, 0, 0, 0, 0)) for call in (3, 5, 9, 10, 12, 17, 18)] == [
        False,  # connect
        True,  # accept
        False,  # send
        True,
        True,
        True,
        True,
    ]
    assert [can_restart(I386, ipc, (call, 0, 0, 0, 0, 0)) for call in (1, 4, 12)] == [True, True, False]
    assert [can_survive_stop(BlockedCall(ipc, (call,), 1, 1), 1, I386) for call in (1, 11, 12)] == [False, True, True]
