"""Numbers of system calls by architecture (the kernel's asm/unistd.h), and names of all calls by number.

The tables of numbers contain the calls in which threads sleep, and the calls that a ptrace stop may interrupt. The
names come from python-ptrace's tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path

X32_BIT = 0x4000_0000

X86_64 = {
    "read": 0, "readv": 19, "write": 1, "poll": 7, "ppoll": 271, "select": 23, "pselect6": 270, "pause": 34,
    "nanosleep": 35, "clock_nanosleep": 230, "futex": 202, "wait4": 61, "waitid": 247, "msgsnd": 69, "msgrcv": 70,
    "flock": 73, "rt_sigsuspend": 130, "restart_syscall": 219, "mq_timedreceive": 243, "epoll_wait": 232,
    "epoll_pwait": 281, "epoll_pwait2": 441, "accept": 43, "accept4": 288, "recvfrom": 45, "recvmsg": 47, "semop": 65,
    "semtimedop": 220, "rt_sigtimedwait": 128, "io_getevents": 208,
    "writev": 20, "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "recvmmsg": 299, "sendfile": 40,
    "splice": 275, "copy_file_range": 326, "getrandom": 318,
}  # fmt: skip

_X32_OWN = {"readv": 515, "writev": 516, "waitid": 529, "recvfrom": 517, "sendmsg": 518, "recvmsg": 519,
            "recvmmsg": 537, "sendmmsg": 538, "rt_sigtimedwait": 523}  # fmt: skip
X32 = {name: number | X32_BIT for name, number in (X86_64 | _X32_OWN).items()}

I386 = {
    "read": 3, "readv": 145, "write": 4, "poll": 168, "ppoll": 309, "ppoll_time64": 414, "select": 82,
    "_newselect": 142, "pselect6": 308, "pselect6_time64": 413, "pause": 29, "nanosleep": 162, "clock_nanosleep": 267,
    "clock_nanosleep_time64": 407, "futex": 240, "futex_time64": 422, "wait4": 114, "waitpid": 7, "waitid": 284,
    "msgsnd": 400, "msgrcv": 401, "ipc": 117, "flock": 143, "sigsuspend": 72, "rt_sigsuspend": 179,
    "restart_syscall": 0, "mq_timedreceive": 280, "mq_timedreceive_time64": 419, "epoll_wait": 256,
    "epoll_pwait": 319, "epoll_pwait2": 441, "accept4": 364, "recvfrom": 371, "recvmsg": 372, "socketcall": 102,
    "semtimedop_time64": 420, "rt_sigtimedwait": 177, "rt_sigtimedwait_time64": 421, "io_getevents": 247,
    "writev": 146, "sendto": 369, "sendmsg": 370, "sendmmsg": 345, "recvmmsg": 337, "recvmmsg_time64": 417,
    "sendfile": 187, "sendfile64": 239, "splice": 313, "copy_file_range": 377, "getrandom": 355,
}  # fmt: skip

ARM = {
    "read": 3, "readv": 145, "write": 4, "poll": 168, "ppoll": 336, "ppoll_time64": 414, "_newselect": 142,
    "pselect6": 335, "pselect6_time64": 413, "pause": 29, "nanosleep": 162, "clock_nanosleep": 265,
    "clock_nanosleep_time64": 407, "futex": 240, "futex_time64": 422, "wait4": 114, "waitid": 280, "msgsnd": 301,
    "msgrcv": 302, "flock": 143, "sigsuspend": 72, "rt_sigsuspend": 179, "restart_syscall": 0, "mq_timedreceive": 277,
    "mq_timedreceive_time64": 419, "epoll_wait": 252, "epoll_pwait": 346, "epoll_pwait2": 441, "accept": 285,
    "accept4": 366, "recvfrom": 292, "recvmsg": 297, "recv": 291, "semop": 298, "semtimedop": 312,
    "semtimedop_time64": 420, "rt_sigtimedwait": 177, "rt_sigtimedwait_time64": 421, "io_getevents": 245,
    "writev": 146, "send": 289, "sendto": 290, "sendmsg": 296, "sendmmsg": 374, "recvmmsg": 365,
    "recvmmsg_time64": 417, "sendfile": 187, "sendfile64": 239, "splice": 340, "copy_file_range": 391, "getrandom": 384,
}  # fmt: skip

GENERIC = {
    "read": 63, "readv": 65, "write": 64, "ppoll": 73, "pselect6": 72, "nanosleep": 101, "clock_nanosleep": 115,
    "futex": 98, "wait4": 260, "waitid": 95, "msgsnd": 189, "msgrcv": 188, "flock": 32, "rt_sigsuspend": 133,
    "restart_syscall": 128, "mq_timedreceive": 183, "epoll_pwait": 22, "epoll_pwait2": 441, "accept": 202,
    "accept4": 242, "recvfrom": 207, "recvmsg": 212, "semop": 193, "semtimedop": 192, "rt_sigtimedwait": 137,
    "io_getevents": 4,
    "writev": 66, "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "recvmmsg": 243, "sendfile": 71, "splice": 76,
    "copy_file_range": 285, "getrandom": 278,
}  # fmt: skip
"""System calls in asm-generic/unistd.h with 64-bit words: AArch64 and RISC-V."""

MACHINES = ("x86_64", "i386", "aarch64")


@cache
def call_names(machine: str) -> Mapping[int, str]:
    """Return the names of Linux system calls by number. The result is empty if the tables of python-ptrace lack the
    machine.

    Only the table is loaded. Its package would first build the prototypes of all calls, which takes 10 ms.
    """
    package = find_spec("ptrace")
    if machine not in MACHINES or package is None or package.origin is None:
        return {}
    name = f"pyprof_calls_of_{machine}"
    file = Path(package.origin).parent / "syscall" / "linux" / f"{machine}.py"
    spec = spec_from_loader(name, SourceFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    table = module_from_spec(spec)
    spec.loader.exec_module(table)
    found: dict[int, str] = table.SYSCALL_NAMES
    return found
