"""Tests of the Firefox Profiler format: it is valid, and stacks and sums equal those of the profile."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

from pyprof.exporters.begin_end_times import IN_SEQUENCE
from pyprof.exporters.display_names import frame_levels
from pyprof.exporters.firefox import CATEGORIES, WAITS, breakpad_id
from pyprof.model.analysis.sample_filter import timed
from pyprof.model.profile import Frame, FrameKind, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.untrusted_text import clean_text
from pyprof.model.unwind_result import Trust
from pyprof.symbolize.kernel_symbols import _STATES
from tests.exporters.firefox_profile import FirefoxProfile, read
from tests.exporters.profiles import LIBC, PERIOD_NS, START_NS, Builder, code, deep, golden, marker, profiles
from tests.exporters.support import PLAIN, export
from tests.support import missing

A, B, POLL = code("a", rel=0x10), code("b", rel=0x20), code("poll", 0, 0x40)


def firefox(profile: Profile) -> FirefoxProfile:
    return read(export("firefox", profile))


def names(profile: Profile, leaf: int) -> tuple[str, ...]:
    found = [level.name for frame in profile.path(leaf) for level in frame_levels(profile, frame, PLAIN)]
    return tuple(map(clean_text, found)) or ("[unknown]",)


def kernel(title: str) -> Frame:
    return Frame(FrameKind.KERNEL, 0, 0, 0, -1, (), Trust.CONTEXT, title)


def waits(*samples: tuple[int, list[Frame], int], **more: Any) -> list[tuple[int, int, str, str]]:
    """Return (begin, end, state, call) of the wait markers of a thread with these (period, stack, periods) samples."""
    builder = Builder()
    for _, stack, periods in samples:
        builder.sample(builder.node(stack), cpu_ns=periods * PERIOD_NS)
    time_ns = START_NS + np.array([at for at, _, _ in samples], np.int64) * PERIOD_NS
    (track,) = firefox(builder.build(time_ns=time_ns, **more)).tracks
    return [(m.begin // PERIOD_NS, m.end // PERIOD_NS, m.data["state"], m.data["call"]) for m in track.markers]


def test_threads_have_their_names_numbers_and_processes() -> None:
    tracks = firefox(golden()).tracks
    assert [(t.pid, t.tid, t.process, t.main) for t in tracks] == [
        ("100", 100, "server", True),
        ("100", 101, "server", False),
        ("100", 102, "server", False),
        ("200", 200, "child", True),
    ]
    assert [track.name for track in tracks] == ["main", "worker;1", golden().threads[2].name, "thread"]


def test_numbers_that_were_used_again_are_threads_and_processes_of_their_own() -> None:
    first, second = ThreadInfo(1, 1, "old", "a", 5, 5), ThreadInfo(1, 1, "new", "b", 9, 9)
    tracks = firefox(Builder([first, second, replace(second, tid=2)]).build()).tracks
    assert [(t.pid, t.tid) for t in tracks] == [("1", 1), ("1.1", "1.1"), ("1.1", 2)]


def test_times_and_weights_are_milliseconds_and_cpu_time_draws_the_activity() -> None:
    profile = golden()
    (track, *_) = firefox(profile).tracks
    kept = profile.thread == 0
    assert track.times == (profile.time_ns[kept] - START_NS).tolist()
    assert (track.weights, track.cpu, track.kind) == (profile.values[kept, 1].tolist(),) * 2 + ("tracing-ms",)
    wall = replace(profile, value_types=(profile.value_types[0], ValueType("wall", "nanoseconds")))
    assert firefox(wall).tracks[0].cpu is None


@pytest.mark.parametrize(("unit", "kind"), [("count", "samples"), ("bytes", "bytes")])
def test_counts_and_bytes_are_weights_as_they_are(unit: str, kind: str) -> None:
    track = firefox(replace(golden(), value_types=(ValueType("n", "count"), ValueType("m", unit)))).tracks[0]
    assert (track.kind, sum(track.weights)) == (kind, 11 * PERIOD_NS)


def test_inlined_functions_are_frames_of_one_address_with_file_and_line() -> None:
    profile = firefox(golden())
    frames = profile.frames(profile.tracks[0].rows[0])
    assert [(f["name"], f["inlineDepth"], f["subcategory"]) for f in frames[2:]] == [
        ("handle(Request&)", 0, "Other"),
        ("clamp", 1, "Inlined"),
        ("std::min(int, int)", 2, "Inlined"),
        ("memcpy", 0, "Other"),
    ]
    assert {(f["address"], f["nativeSymbol"]) for f in frames[2:5]} == {(0x3FF, frames[2]["nativeSymbol"])}
    assert [(f["file"], f["line"]) for f in frames[2:4]] == [("/src/server/handle.cc", 118), ("/src/server/util.h", 17)]
    symbols = profile.shared["nativeSymbols"]
    assert symbols["address"][frames[2]["nativeSymbol"]] == 0x400 - 0x40


def test_libraries_carry_their_build_ids() -> None:
    profile = firefox(golden())
    memcpy = profile.frames(profile.tracks[0].rows[0])[-1]
    assert memcpy["lib"]["codeId"] == LIBC.build_id
    assert (memcpy["lib"]["name"], memcpy["lib"]["path"]) == ("libc.so.6", LIBC.path)
    assert breakpad_id("00112233445566778899aabbccddeeff01020304") == "33221100554477668899AABBCCDDEEFF0"
    assert (breakpad_id("1234"), breakpad_id(""), breakpad_id("no hex")) == ("00003412" + "0" * 25, "", "")


def test_one_file_mapped_twice_is_one_library() -> None:
    moved = replace(LIBC, start=LIBC.start + 0x1000_0000)
    builder = Builder()
    builder.sample(builder.node([code("f", 0, 0x40)]))
    builder.sample(builder.node([replace(code("f", 0, 0x40), module=1)]))
    profile = firefox(builder.build((LIBC, moved)))
    assert len(profile.document["libs"]) == 1
    assert profile.shared["funcTable"]["length"] == 1


@pytest.mark.parametrize(
    ("frame", "category"),
    [
        (A, "Native"),
        (replace(A, module=2), "JIT"),
        (replace(A, module=-1), "JIT"),
        (replace(A, kind=FrameKind.INTERPRETER, module=-1), "Interpreted"),
        (kernel("do_sys"), "Kernel"),
        (kernel("[sleeping: futex]"), "Waiting"),
        (marker("[truncated: no rule]"), "Not recorded"),
    ],
)
def test_kind_of_code_is_the_category(frame: Frame, category: str) -> None:
    builder = Builder()
    builder.sample(builder.node([frame]))
    heap = ModuleInfo("[anon: v8]", "", 0x1000, 0x2000, 0, True, False)
    profile = firefox(builder.build((LIBC, LIBC, heap)))
    (found,) = profile.frames(profile.tracks[0].rows[0])
    assert found["category"] == category
    assert len({colour for _, colour, _ in CATEGORIES}) == len(CATEGORIES)


def test_every_state_that_a_wait_is_called_by_is_known() -> None:
    assert {*_STATES.values(), "blocked"} == set(WAITS)
    for state in WAITS:
        for title, call in ((f"[{state}]", ""), (f"[{state}: futex]", "futex")):
            assert waits((0, [POLL, kernel(title)], 1)) == [(0, 1, state, call)]


def test_wait_goes_on_while_samples_have_it_on_the_same_stack() -> None:
    asleep, elsewhere = [POLL, kernel("[sleeping: poll]")], [A, POLL, kernel("[sleeping: poll]")]
    found = waits((0, asleep, 1), (1, asleep, 1), (2, [A], 1), (3, asleep, 1), (4, elsewhere, 1), (8, elsewhere, 4))
    spans = [(begin, end) for begin, end, _, _ in found]
    assert spans == [(0, 2), (3, 4), (4, 5), (8, 12)]


def test_many_short_waits_together_are_no_marker() -> None:
    assert not waits((0, [POLL, kernel("[sleeping: waits too short or too many for stacks]")], 3))


def test_samples_without_times_follow_one_another_and_it_is_said() -> None:
    profile = replace(golden(), time_ns=np.full(len(golden().stack), START_NS))
    read_back = firefox(profile)
    assert read_back.tracks[0].times[:3] == [0, PERIOD_NS, 2 * PERIOD_NS]
    notes = [entry["value"] for section in read_back.document["meta"]["extra"] for entry in section["entries"]]
    assert IN_SEQUENCE in notes


def test_differences_have_negative_weights() -> None:
    assert sum(firefox(replace(golden(), values=-golden().values)).tracks[0].weights) == -11 * PERIOD_NS


def test_empty_profile_has_a_thread() -> None:
    assert [len(track.rows) for track in firefox(Builder([]).build()).tracks] == [0]


def test_deep_stack_is_whole_and_small() -> None:
    data = export("firefox", deep())
    profile = read(data)
    assert max(len(profile.names(row)) for row in profile.tracks[0].rows) == 20_000
    assert len(data) < 200_000


@given(profiles())
def test_read_back_it_has_the_stacks_and_sums_of_each_thread(profile: Profile) -> None:
    read_back = firefox(profile)
    for index, track in enumerate(read_back.tracks):
        expected: Counter[tuple[str, ...]] = Counter()
        for at in np.flatnonzero(profile.thread == index).tolist():
            expected[names(profile, int(profile.stack[at]))] += int(profile.values[at, -1])
        assert +read_back.stacks(track) == +expected
        if timed(profile):
            assert track.times == (profile.time_ns[profile.thread == index] - START_NS).tolist()


@given(profiles())
def test_every_frame_of_code_has_its_address_in_its_library(profile: Profile) -> None:
    assume(len(profile.stack))
    read_back = firefox(profile)
    for track in read_back.tracks:
        for row in track.rows:
            for frame in read_back.frames(row):
                assert frame["address"] < 0 or frame["lib"] is not None
                assert frame["nativeSymbol"] is None or frame["address"] >= 0


MODULES = Path(__file__).parents[2] / "tooling" / "firefox" / "node_modules"


@pytest.mark.system
def test_mozillas_own_program_reads_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the file with profiler-cli, whose daemon the test starts.

    `profiler-cli load` waits only half a second for its daemon, which is too short on a busy machine. No other command
    may run before the daemon listens: a command that finds no session removes the socket of one that starts.
    """
    program = [str(MODULES / ".bin" / "node"), str(MODULES / "@firefox-devtools/profiler-cli/dist/profiler-cli.js")]
    if not all(map(os.path.exists, program)):
        missing("needs Mozilla's profiler-cli: npm ci --prefix tooling/firefox")
    monkeypatch.setenv("PROFILER_CLI_SESSION_DIR", str(tmp_path))
    path = tmp_path / "golden.firefox.json.gz"
    path.write_bytes(export("firefox", golden()))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*program, *arguments, "--session", "golden"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    server = [*program, "--daemon", str(path), "--session", "golden"]
    log = tmp_path / "golden.log"
    with subprocess.Popen(server, stdout=subprocess.DEVNULL) as it:
        try:
            while it.poll() is None and not (log.exists() and "Profile loaded successfully" in log.read_text()):
                time.sleep(0.02)
            text = run("thread", "samples").stdout
        finally:
            it.terminate()
    assert re.search(r"server!main - total: 110ms \(100\.0%\)", text)
    assert re.search(r"libc\.so\.6!memcpy - self: 80ms", text)
    assert re.search(r"clamp \(inl\) - total: 50ms", text)
