"""Tests of third-party programs: sleeping ones against gdb and eu-stack, busy ones for complete stacks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.support.other_unwinders import Stacks, eu_stacks, gdb_stacks
from tests.live.support.recording import Recording, dump, record
from tests.support import PROGRAMS, need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

PYTHON_SLEEPS = """
import select, socket, threading, time
def nested(n, last):
    return nested(n - 1, last) if n else last()
server = socket.create_server(("127.0.0.1", 0))
for last in (threading.Event().wait, server.accept, lambda: select.select([server], [], []), lambda: sorted(
    [2, 1], key=lambda x: time.sleep(100))):
    threading.Thread(target=nested, args=(5, last), daemon=True).start()
nested(20, lambda: time.sleep(100))
"""
PERL_SLEEPS = (
    "sub f { my $n = shift; return $n ? f($n - 1) : join ',', map { sleep 100 } sort { $a <=> $b } 3, 2 } f(9)"
)
GDB_SLEEPS = "python import time; time.sleep(100)"
NODE_SLEEPS = "setInterval(() => {}, 1e6); require('fs').readFile('/dev/null', () => {})"

SLEEPING = {
    "python3": ["python3", "-c", PYTHON_SLEEPS],
    "node": ["node", "-e", NODE_SLEEPS],
    "perl": ["perl", "-e", PERL_SLEEPS],
    "gdb": ["gdb", "-nx", "-batch", "-ex", GDB_SLEEPS],
    "sqlite3": ["sqlite3", "-interactive"],
    "rustc": ["rustc", "-o", "/dev/null", "-"],
    "sh": ["sh", "-c", "f() { read x; g; }; g() { f; }; f"],
}

PYTHON_WORKS = """
import hashlib, json, re, zlib
while True:
    d = json.loads(json.dumps({str(i): [i, 1.5 * i] for i in range(300)}))
    re.findall(r"(\\\\w+):(\\\\d+)", "abc:12 " * 200)
    hashlib.sha256(zlib.compress(str(sorted(d, key=lambda k: -int(k))).encode())).digest()
"""
NODE_WORKS = """
function f(n) {
  const m = new Map();
  for (let i = 0; i < n; i++) m.set('k' + i, { a: i, b: [i, i * 2] });
  return JSON.stringify([...m].sort((a, b) => b[1].a - a[1].a)).replace(/\\d/g, x => x + x).length;
}
while (true) f(2000);
"""
PERL_WORKS = """
sub f {
    my $n = shift; my %h = map { $_ => $_ * 2.5 } 1 .. 200; my @s = sort { $h{$a} <=> $h{$b} } keys %h;
    my $t = sprintf('%.3f', $n) . join(',', @s); $t =~ s/(\\d+)/<$1>/g; return $n ? f($n - 1) : length $t
}
f(20) while 1;
"""
SQLITE_WORKS = """
with recursive c(x) as (select 1 union all select x + 1 from c where x < 1000000000)
select count(*), sum(x * 1.5), max(printf('%08.3f', x)) from c where x % 7 = 3;
"""
GDB_WORKS = """python
while True:
    for text in ("sizeof(1+2*3)", "(int)(1.5*3)", "1==2&&3<4"):
        gdb.parse_and_eval(text)
    gdb.execute("help show", to_string=True)
"""

WORKING = {
    "python3": ["python3", "-c", PYTHON_WORKS],
    "node": ["node", "-e", NODE_WORKS],
    "perl": ["perl", "-e", PERL_WORKS],
    "sqlite3": ["sqlite3", ":memory:", SQLITE_WORKS],
    "gdb": ["gdb", "-nx", "-batch", "-ex", GDB_WORKS],
}

MAX_S = 30


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program whose standard input stays empty."""
    program = subprocess.Popen(
        [need(command[0]), *command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "RUSTUP_HOME": rustup_home(), "CARGO_HOME": cargo_home()},
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait(timeout=30)
        assert program.stdin is not None
        program.stdin.close()


def rustup_home() -> str:
    return os.environ.get("RUSTUP_HOME") or str(Path.home() / ".rustup")


def cargo_home() -> str:
    return os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")


def wait_until_asleep(pid: int) -> None:
    """Wait until no thread has run for a while."""
    before, since = "", time.monotonic()
    deadline = since + MAX_S
    while time.monotonic() < deadline:
        try:
            tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
            now = "".join(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text() for tid in tasks)
        except FileNotFoundError:
            now = str(time.monotonic_ns())
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > 0.5:
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} did not fall asleep in {MAX_S} s")


def our_stacks(pid: int) -> Stacks:
    found = dump(pid)
    assert {thread["end"] for thread in found["threads"]} == {"root"}
    return {
        thread["tid"]: [int(frame["pc"], 16) for frame in thread["frames"] if frame["kind"] == "native"]
        for thread in found["threads"]
    }


@pytest.mark.parametrize("program", list(SLEEPING))
def test_sleeping_threads_have_the_stacks_that_gdb_and_eu_stack_find(program: str, tmp_path: Path) -> None:
    with started(SLEEPING[program], tmp_path) as process:
        for _ in range(5):  # on a busy machine its main thread may sleep before it has started the others
            wait_until_asleep(process.pid)
            ours = our_stacks(process.pid)
            by_gdb = gdb_stacks(process.pid, tmp_path)
            by_eu_stack = eu_stacks(process.pid)
            if set(ours) == set(by_gdb) == set(by_eu_stack):
                break
    assert set(ours) == set(by_gdb) == set(by_eu_stack)
    assert texts(ours) == texts(by_eu_stack)
    assert texts(ours) == texts(by_gdb)


def texts(stacks: Stacks) -> dict[int, list[str]]:
    return {tid: [hex(pc) for pc in pcs] for tid, pcs in sorted(stacks.items())}


@pytest.mark.parametrize("program", list(WORKING))
def test_working_programs_have_stacks_that_end_at_the_root(program: str, tmp_path: Path) -> None:
    with started(WORKING[program], tmp_path) as process:
        time.sleep(0.5)
        recording = record(process.pid, tmp_path, rate=999, until=lambda recording: recording.samples > 200)
    assert recording.samples > 200
    assert recording.whole >= 0.995, [stack for stack in recording.stacks if "truncated" in stack[0]]


BLAKE3 = "frame_dummy.cold"
"""Name under which LLVM's BLAKE3 assembly appears.

It has no unwind tables and pushes six registers before it sets up the frame pointer. In rustup's libLLVM.so, which BOLT
has reordered, the preceding symbol covers it.
"""


def wholes(recording: Recording) -> int:
    """Return the number of samples whose stack ends at the root."""
    return int(recording.summary["ends"].get("root", 0))


def test_compiler_that_comes_and_goes_has_stacks_that_end_at_the_root(tmp_path: Path) -> None:
    source = PROGRAMS / "ladder.rs"
    script = f"while :; do rustc -O -o {tmp_path}/out {source} || exit 1; done"
    need("rustc")
    with started(["sh", "-c", script], tmp_path) as process:
        recording = record(process.pid, tmp_path, "-s", seconds=1, until=lambda recording: wholes(recording) > 50)
        subprocess.run(["pkill", "-P", str(process.pid)], check=False, timeout=30)
    without_table = recording.stacks.get(("[truncated: no unwind rule]", BLAKE3), 0)
    late = recording.summary["ends"].get("late", 0)  # on a busy machine there is no time for the last samples
    assert wholes(recording) > 50
    assert wholes(recording) >= 0.995 * (recording.samples - without_table - late), [
        stack for stack in recording.stacks if "truncated" in stack[0]
    ]
