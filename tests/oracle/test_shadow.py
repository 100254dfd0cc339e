"""Tests of the shadow stack itself against gdb."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.support.ladders import ladder
from tests.oracle.opcodes import CALL, JUMP, PLAIN, RET, SYSCALL, classify
from tests.oracle.shadow import Shadow
from tests.oracle.tracer import AT_ENTRY, Ended, Tracee
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

_BACKTRACE = """
python
frame = gdb.newest_frame()
while frame is not None:
    if frame.type() != gdb.INLINE_FRAME:
        print("frame", hex(frame.pc()))
    frame = frame.older()
end
"""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("e8 00 00 00 00", CALL),
        ("ff d0", CALL),
        ("41 ff 54 24 08", CALL),
        ("3e ff 15 00 00 00 00", CALL),
        ("f2 c3", RET),
        ("c2 08 00", RET),
        ("ff 25 00 00 00 00", JUMP),
        ("f2 ff e1", JUMP),
        ("0f 05", SYSCALL),
        ("e9 00 00 00 00", PLAIN),
        ("ff 35 00 00 00 00", PLAIN),
        ("0f 0b", PLAIN),
        ("48 83 ec 08", PLAIN),
        ("", PLAIN),
    ],
)
def test_instruction_is_told_by_its_first_bytes(code: str, kind: int) -> None:
    assert classify(bytes.fromhex(code)) == kind


@pytest.mark.parametrize(
    ("program", "moments"),
    [
        ("ladder", (1500, 2300, 2601)),
        ("ladder_signal", (2200, 6900)),
        ("ladder_throw", (3000, 20011)),
        ("ladder_plt", (3103,)),
        ("ladder_drap", (1700,)),
    ],
)
def test_shadow_stack_equals_the_backtrace_of_gdb(program: str, moments: tuple[int, ...], tmp_path: Path) -> None:
    for moment in moments:
        with traced([str(ladder(program)), "once"]) as shadow:
            for _ in range(moment):
                shadow.step()
            shadow.tracee.detach_stopped()
            seen = [shadow.pc, *[entry.pc for entry in shadow.top.chain()]]
            assert [hex(pc) for pc in seen] == backtrace(shadow.tracee.pid, tmp_path / "script")


def backtrace(pid: int, script: Path) -> list[str]:
    script.write_text(_BACKTRACE)
    settings = ["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"]
    done = subprocess.run(
        [need("gdb"), "-nx", "-batch", "-p", str(pid), *settings, "-x", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("frame 0x")]


def test_shadow_stack_is_back_where_it_began_when_main_has_returned() -> None:
    with traced([str(ladder("ladder_signal")), "once"]) as shadow:
        deepest = 0
        for _ in steps_to_the_end(shadow):
            deepest = max(deepest, shadow.top.depth)
        assert deepest == len(["_start", "__libc_start_main", "__libc_start_call_main", "main", *range(30), "s_top"])
        # frames: _exit, exit handlers, exit, __libc_start_call_main, __libc_start_main, _start
        assert shadow.top.depth == 5


def test_signal_that_is_ignored_leaves_no_entry() -> None:
    with traced(["/bin/sh", "-c", "trap '' USR1; kill -USR1 $$; exit 0"]) as shadow:
        signals = 0
        for _ in steps_to_the_end(shadow):
            signals += shadow.tracee.pending == signal.SIGUSR1
            assert shadow.top.segment is None
        assert signals == 1


@contextmanager
def traced(command: list[str]) -> Iterator[Shadow]:
    tracee = Tracee(command)
    try:
        tracee.run_to(tracee.auxv()[AT_ENTRY])
        yield Shadow(tracee)
    finally:
        tracee.close()


def steps_to_the_end(shadow: Shadow) -> Iterator[None]:
    for _ in range(1_000_000):
        try:
            shadow.step()
        except Ended:
            return
        yield
    pytest.fail("the program did not end")
