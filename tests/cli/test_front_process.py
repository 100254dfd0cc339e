"""Tests of the front process: it ends as its child ends, and passes signals on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.session import process_priority

CHILD = """
import os, signal, sys, time
from pyprof.cli import front_process
front = os.getpid()
def handle(number, frame):
    print(number, flush=True)
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, handle)
front_process.begin_session()
assert os.getppid() == front and os.getsid(0) == os.getpid()
print(os.getpid(), flush=True)
{rest}
"""


def start(rest: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD.format(rest=rest)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(is_true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15); signal.pause()", -15),
        ("os.kill(os.getpid(), 9)", -9),
    ],
)
def test_front_process_ends_as_its_child_ends(rest: str, code: int) -> None:
    with start(rest) as process:
        assert process.wait(60) == code


def test_front_process_ends_where_the_kernel_reaps_children() -> None:
    with start("sys.exit(3)", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) as process:
        assert process.wait(60) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_of_the_front_process_reach_its_child(number: signal.Signals) -> None:
    with start("while True: time.sleep(1)") as process:
        first_line(process)
        process.send_signal(number)
        assert first_line(process) == str(int(number))
        assert process.wait(60) == 7


def test_signal_that_the_caller_ignores_stays_ignored() -> None:
    with start(
        "sys.stdin.read()", stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(1, signal.SIG_IGN)
    ) as process:
        first_line(process)
        process.send_signal(signal.SIGHUP)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_stop_and_continue_from_the_terminal_reach_the_child() -> None:
    with start("while True: time.sleep(0.01)") as process:
        child = int(first_line(process))
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state(process.pid) == "T" and state(child) == "T")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state(process.pid) != "T" and state(child) != "T")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7


def test_killed_front_process_ends_its_child_in_order() -> None:
    with start("while True: time.sleep(1)") as process:
        first_line(process)
        process.kill()
        assert first_line(process) == str(int(signal.SIGTERM))
        process.wait()


SESSION = """
import os, sys
from pyprof.session import process_priority as priority
priority._is_machine_busy = lambda: {busy}
pid = os.getpid()
from pyprof.cli.accelerated_start import prepare
prepare({arguments})
print(os.getpid() != pid, os.getsid(0) == os.getpid())
"""


@pytest.mark.parametrize(
    ("arguments", "busy", "leads", "expected"),
    [
        (["dump", "-p", "1"], True, False, "True True"),
        (["record", "-p", "1"], True, False, "True True"),
        (["record", "./server", "-p", "1"], True, False, "False False"),
        (["top", "-p", "1"], True, False, "False False"),
        (["dump", "-p", "1"], False, False, "False False"),
        (["dump", "-p", "1"], True, True, "False True"),
    ],
)
def test_front_process_only_on_a_busy_machine_in_the_session_of_others(
    arguments: list[str], busy: bool, leads: bool, expected: str
) -> None:
    groups = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if os.geteuid() or not groups.exists() or groups.read_text().strip() != "1":
        pytest.skip("needs CAP_SYS_NICE and autogroups")
    command = [sys.executable, "-c", SESSION.format(busy=busy, arguments=arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=leads)
    assert done.stdout.strip() == expected


def test_machine_with_more_runnable_threads_than_processors_is_busy() -> None:
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop, start_new_session=True) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        wait_until(process_priority._is_machine_busy)
    finally:
        for process in loops:
            process.kill()
            process.wait()
