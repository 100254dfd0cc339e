"""The first process of the guest: it runs the checks, prints one line for each, and powers off.

It needs no packages.
"""

import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

PROGRAMS = Path("/opt/programs")
PYPROF = ["nice", "-n", "-15", "python3", "-m", "pyprof"]  # has priority over busy targets on a slow machine
ONLY = Path("/opt/only").read_text().split(",")
LETTERS = "abcd"
CHECKS: dict[str, Callable[[], None]] = {}
MACHINE = os.uname().machine


def check(*machines: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a check for these machines, or for all if none is given."""

    def take(function: Callable[[], None]) -> Callable[[], None]:
        if not machines or MACHINE in machines:
            CHECKS[function.__name__] = function
        return function

    return take


def prepare() -> None:
    os.environ.update(PATH="/usr/bin:/usr/sbin", PYTHONPATH="/opt/pyprof", HOME="/", NO_COLOR="1", LC_ALL="C.UTF-8")
    for kind, where in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")):
        os.makedirs(where, exist_ok=True)
        subprocess.run(["mount", "-t", kind, kind, where], check=False)


def call(*command: object, seconds: float = 300, codes: Sequence[int] = (0,)) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds)
    assert done.returncode in codes, (command, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


class Running:
    """A program that prints "ready"."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [str(PROGRAMS / name), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self.process.stdout
        self.words = self.process.stdout.readline().split()
        assert self.words[:1] == ["ready"], self.words
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid


def record(pid: int, *options: str, seconds: float = 5, rate: float = 50) -> tuple[dict[str, int], dict[str, Any]]:
    """Record a process, and repeat if the slow machine had no time for the last samples or names."""
    output, summary = "/tmp/stacks", "/tmp/summary"
    for _ in range(5):
        call(*PYPROF, "record", "-p", pid, "-d", seconds, "-r", rate, "-f", "collapsed", "-o", output, "-q",
             "--summary", summary, *options)  # fmt: skip
        if "no time" not in Path(summary).read_text():
            break
    stacks = {}
    for line in Path(output).read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        if "[not sampled" not in stack:  # unsampled time occurs on a busy machine
            stacks[stack] = int(count)
    found = json.loads(Path(summary).read_text())
    print("   ", found["samples"], "samples", found["ends"], found["trust"], found["stops"], found["errors"])
    print("       ", *(problem["text"] for module in found["modules"] for problem in module["problems"]))
    return stacks, found


def rungs(prefix: str, top: int = 30) -> list[str]:
    return [f"{prefix}_{n:02}" for n in range(1, top + 1)]


def standing(name: str, trust: str, least: int = 31, rooted: bool = True, collector: str = "auto") -> None:
    with Running(name, "spin", "600") as program:
        stacks, summary = record(program.pid, "--collector", collector)
    ladders = [";".join([f"{p}_thread", *rungs(p), f"{p}_top"]) for p in LETTERS]
    strange = [stack for stack in stacks if not any(stack.endswith(";" + ladder) for ladder in ladders)]
    assert not strange, strange
    assert summary["samples"] >= 4, summary["samples"]
    assert not rooted or summary["ends"] == {"root": summary["samples"]}, summary["ends"]
    assert summary["trust"].get(trust, 0) >= least * summary["samples"], summary["trust"]


@check()
def machine_and_doctor() -> None:
    print("   ", " ".join(os.uname()))
    print(call(*PYPROF, "--version").strip())
    with Running("ladder", "spin", "600") as program:
        print(call(*PYPROF, "doctor", program.pid))


PYTHON = """
import sys
def outer():
    inner()
def inner():
    while True:
        sum(range(1000))
print("ready", flush=True)
outer()
"""


EACH_OPTION = """
from itertools import product
from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
for waits, seeks, tasks in product((False, True), repeat=3):
    targets = KernelTargets(1, waits=waits, wakers=waits, seeks=seeks, tasks=tasks)
    BpfSampler(targets, 1 << 20, list_online_cpus()).close()
"""


@check()
def bpf_is_had_by_this_kernel() -> None:
    call("python3", "-c", EACH_OPTION)


def sampled_by_kernel(collector: str) -> None:
    with Running("ladder", "spin", "600") as program:
        stacks, summary = record(program.pid, "--collector", collector)
    assert summary["samples"] >= 4, summary["samples"]
    assert summary["ends"] == {"root": summary["samples"]}, summary["ends"]
    assert all(re.search(r"_30;[a-d]_top$", stack) for stack in stacks), stacks
    with subprocess.Popen([sys.executable, "-c", PYTHON], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        program.stdout.readline()
        try:
            stacks, summary = record(program.pid, "--collector", collector)
        finally:
            program.kill()
    assert sum(stacks.values()) >= 4, stacks
    named = sum(count for stack, count in stacks.items() if re.search("outer.*;inner", stack))
    assert collector == "perf" or named >= 0.9 * sum(stacks.values()), stacks
    assert (summary["stops"]["count"] == 0) == (collector != "ptrace"), summary["stops"]


@check()
def kernel_samples_by_bpf() -> None:
    sampled_by_kernel("bpf")


@check("aarch64")
def kernel_samples_arm_code() -> None:
    for collector in ("bpf", "perf"):
        standing("ladder_a32", "exidx", rooted=False, collector=collector)


@check()
def kernel_has_waits_by_bpf() -> None:
    program = "import time\nprint(1, flush=True)\ndef waits():\n    while True: time.sleep(0.02)\nwaits()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        running.stdout.readline()
        try:
            stacks, summary = record(running.pid, "--collector", "bpf", "--mode", "offcpu")
        finally:
            running.kill()
    named = sum(count for stack, count in stacks.items() if "waits" in stack)
    assert named >= 0.9 * sum(stacks.values()) > 0, stacks
    assert summary["ends"]["root"] >= 0.98 * summary["samples"], summary["ends"]  # the emulated machine is slow


OFFLINE = """
import os, sys, time, pyprof
pid, collector, online = int(sys.argv[1]), sys.argv[2], "/sys/devices/system/cpu/cpu1/online"

def until(wanted):
    end = time.monotonic() + 200
    while not wanted(recording.peek()) and time.monotonic() < end:
        time.sleep(0.5)

def top(profile, since_ns=0):
    late = profile.stack[profile.time_ns > since_ns].tolist()
    return sum(profile.path(leaf)[-1].title.endswith("_top") for leaf in late)

with pyprof.attach(pid, collector=collector, rate=50) as recording:
    until(lambda profile: top(profile) > 20)
    with open(online, "w") as file:
        file.write("0")
    time.sleep(3)
    with open(online, "w") as file:
        file.write("1")
    back_ns = time.time_ns()
    for tid in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(tid), {1})
    until(lambda profile: top(profile, back_ns) > 20)
    profile = recording.stop()
print(top(profile), top(profile, back_ns), *(note.text for note in profile.summary.notes), sep="\\n")
"""


@check()
def kernel_samples_a_processor_that_was_offline() -> None:
    for collector in ("bpf", "perf"):
        with Running("ladder", "spin", "600") as program:
            first, late, *notes = call(sys.executable, "-c", OFFLINE, program.pid, collector, seconds=600).splitlines()
        print("   ", first, "samples,", late, "after", notes)
        if collector == "bpf":  # events on threads are not affected
            assert any("processors that were offline" in note for note in notes), notes
        assert int(late) > 20, late


@check()
def kernel_samples_by_perf_events() -> None:
    sampled_by_kernel("perf")


@check()
def kernel_stops() -> None:
    sampled_by_kernel("ptrace")


@check()
def ladder_by_eh_frame() -> None:
    standing("ladder", "eh_frame")


@check("aarch64")
def ladder_with_signed_return_addresses() -> None:
    standing("ladder_signed", "eh_frame")


@check()
def ladder_by_debug_frame() -> None:
    standing("ladder_debug_frame", "debug_frame")


@check("aarch64")
def ladder_by_frame_pointers() -> None:
    standing("ladder_fp", "fp")


@check("aarch64")
def ladder_by_sframe() -> None:
    standing("ladder_sframe", "sframe")


@check("aarch64")
def ladder_of_arm_code() -> None:
    standing("ladder_a32", "exidx", rooted=False)  # clone has EXIDX_CANTUNWIND


@check("aarch64")
def ladder_of_thumb_code() -> None:
    standing("ladder_t32", "exidx", rooted=False)


@check("aarch64")
def climbing_stacks_begin_like_the_ladder() -> None:
    with Running("ladder_signed", "climb", "600") as program:
        stacks, _ = record(program.pid, seconds=5)
    allowed = "|".join(f"{p}_thread" + "".join(f"(?:;{name}" for name in [*rungs(p), f"{p}_top"]) + ")?" * 31
                       for p in LETTERS)  # fmt: skip
    strange = [stack for stack in stacks if not re.fullmatch(rf"[^;]+;[^;]+;(?:{allowed})", stack)]
    assert not strange, strange
    assert len(stacks) > 10, len(stacks)


@check()
def kernel_has_handler_on_its_own_stack() -> None:
    inner = ";".join(["main", *rungs("s", 12), "s_top"])
    with Running("altstack", "spin", "600") as program:
        stacks, summary = record(program.pid, "--collector", "bpf")
    both = [stack for stack in stacks if re.search(rf";{inner};[^;]+;handler;handler_top$", stack)]
    assert both, stacks
    bad = [s for s in stacks if not re.search(r";main(;s_\d\d)*(;s_top)?(;[^;]+(;handler(;handler_top)?)?)?$", s)]
    assert not bad, bad
    assert summary["ends"] == {"root": summary["samples"]}, summary["ends"]


def sleeping(name: str) -> str:
    kinds = ["futex", "epoll_wait", "nanosleep", "poll", "pipe", "recv"]
    with Running(name, "0", "900000000", *kinds) as program:
        tids = dict(zip(map(int, program.words[1:]), kinds, strict=True))
        time.sleep(1)
        found = json.loads(call(*PYPROF, "dump", "-p", program.pid, "--json", codes=(0, 3)))
        for thread in found["threads"]:
            names = [frame["function"] for frame in thread["frames"]]
            print("   ", tids.get(thread["tid"], "main"), thread["end"], names, [f["trust"] for f in thread["frames"]])
        for thread in found["threads"]:
            kind = tids.get(thread["tid"])
            # the others must not be stopped, so lr may be missing; syscall(2) of ARM has no table and changes sp
            if kind in ("nanosleep", "poll", "pipe") or (kind == "futex" and found["arch"] != "arm"):
                assert "run" in [frame["function"] for frame in thread["frames"]], (kind, thread)
                assert thread["end"] == "root" or found["arch"] == "arm", (kind, thread)  # clone has EXIDX_CANTUNWIND
    return str(found["arch"])


@check()
def sleeping_threads() -> None:
    assert sleeping("sleepers") == MACHINE


@check("aarch64")
def sleeping_threads_of_arm_code() -> None:
    assert sleeping("sleepers_a32") == "arm"


@check()
def sleepers_are_not_disturbed() -> None:
    kinds = ["epoll_wait", "recv", "semtimedop", "futex", "nanosleep", "poll", "pipe", "sigtimedwait"]
    with Running("sleepers", "0", "200000", *kinds) as program:
        _, summary = record(program.pid, "-i", seconds=5, rate=20)
        out, _ = program.process.communicate(timeout=60)
    print("   ", out.split())
    counted = summary["errors"].get("system_call_interrupted", 0)
    failed = 0
    for line in out.splitlines():
        _, calls, interrupted = line.split()
        assert int(calls) > 3, line
        failed += int(interrupted)
    assert failed <= counted <= 3, (failed, counted)  # they cannot be restarted here, see docs/sampling.md


@check("aarch64")
def same_frames_as_eu_stack() -> None:
    with Running("ladder", "spin", "600") as program:
        found = json.loads(call(*PYPROF, "dump", "-p", program.pid, "--json"))
        listed = subprocess.run(["eu-stack", "-n", "0", "-p", str(program.pid)], capture_output=True, text=True).stdout
    theirs: dict[int, list[int]] = {}
    for line in listed.splitlines():
        if match := re.match(r"TID (\d+):", line):
            tid = int(match[1])
            theirs[tid] = []
        elif match := re.match(r"#\d+\s+(0x[0-9a-f]+)", line):
            theirs[tid].append(int(match[1], 16) & (1 << 48) - 1)  # elfutils 0.188 does not strip pointer signatures
    for thread in found["threads"]:
        own = [frame for frame in thread["frames"][1:] if frame["module"].endswith("/ladder")]
        ours = [int(frame["pc"], 16) for frame in own]
        print("   ", thread["tid"], len(ours), len(theirs[thread["tid"]]))
        # elfutils 0.188 repeats frames, and uses frame pointers for signed addresses, which skips frames without one
        known = list(dict.fromkeys(pc for pc in theirs[thread["tid"]][1:] if pc in ours))
        assert known, (ours, theirs)
        assert known == [pc for pc in ours if pc in known], (ours, theirs)


@check("aarch64")
def a_family_of_both_kinds_of_code() -> None:
    script = f"{PROGRAMS}/ladder spin 600 & {PROGRAMS}/ladder_t32 spin 600 & echo ready; wait"
    shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        time.sleep(2)
        _, summary = record(shell.pid, "-s", seconds=10)
    finally:
        os.killpg(shell.pid, 9)
        shell.communicate()
    frames = {module["path"].rsplit("/", 1)[-1]: module["frames"] for module in summary["modules"]}
    assert frames["ladder"] > 100, frames
    assert frames["ladder_t32"] > 100, frames
    assert set(summary["ends"]) <= {"root", "no_rule"}, summary["ends"]


@check()
def a_command_from_its_first_instruction() -> None:
    ladder = PROGRAMS / "ladder", "climb", "4"
    assert "ready" in call(*PYPROF, "record", "-f", "collapsed", "-o", "/tmp/stacks", "--", *ladder)
    assert "a_thread;a_01" in Path("/tmp/stacks").read_text()


def main() -> None:
    prepare()
    print("guest is up:", " ".join(os.uname()))
    for name, function in CHECKS.items():
        if not any(word in name for word in ONLY):
            continue
        began = time.monotonic()
        try:
            function()
            print(f"passed {name} ({time.monotonic() - began:.0f} s)")
        except BaseException:  # noqa: BLE001 - the next check runs all the same
            traceback.print_exc(file=sys.stdout)
            print(f"FAILED {name} ({time.monotonic() - began:.0f} s)")
    print("all checks done")


try:
    main()
finally:
    sys.stdout.flush()
    Path("/proc/sysrq-trigger").write_text("o")
    time.sleep(60)
