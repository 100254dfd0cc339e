"""Tests of reading the output of `perf script` with various options."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.errors import FormatError
from pyprof.importers import perf
from pyprof.importers.registry import load
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import FrameKind, Profile, ValueType

USUAL = b"""\
# ========
# captured on    : Thu Nov 26 10:54:16 2026
# ========
#
server 1  2145 [001]   939.464337:    5025125 cpu-clock:pppH:
\t          11b125 ns::parse(char const*, int) const+0x35 (/opt/a b/server)
\t          11b200 [unknown] (/opt/a b/server)
\t    7f0000001234 [unknown] ([unknown])
\t          11c000 main+0x10 (/opt/a b/server (deleted))

  be   2146 [000]   939.464100:    5025125 cpu-clock:pppH:
\tffffffff821f8b58 __schedule+0x618 ([kernel.kallsyms])
\t          11b300 inner+0x5 (inlined)
\t          11b300 outer+0x20 (/opt/a b/server)

"""

WITH_MORE = b"""\
perl  9/10    939.464337123:    7 cycles:u:
\t          11b125 Perl_pp_gvsv+0x35 (/usr/bin/perl)
  pp_hot.c:84

perl  9/9    939.5:    7 no.sample:
perl  9/11    939.600000000:    9 instructions:u:
\t          11b125 Perl_pp_gvsv+0x35 (/usr/bin/perl)

python  9/9    939.700000000:    8 cycles:u:
\t          100 py::A.run:/srv/app.py+0x5 (/tmp/perf-9.map)
\t          200 main+0x0 (/usr/bin/python3)

"""

ALONE = b"""\
            perl 12613 [001]  1095.206124:     250000 cpu-clock:u:      7fa0ba70e961 __memcmp_evex_movbe+0x21 (/usr/lib/libc.so.6)
           sleep 14186 [000]  1095.206830:     250000 cpu-clock:u:      7fbbe1521cea _int_malloc+0x98a (/usr/lib/libc.so.6)
"""  # noqa: E501

TRACEPOINT = b"""\
perf 14145 [000]  1093.664970: sched:sched_switch: prev_comm=perf prev_pid=14145 ==> next_comm=x (y)
\tffffffff821f8b58 __schedule+0x618 ([kernel.kallsyms])

swapper     0 [000]  1093.664990: sched:sched_switch: prev_comm=swapper/0 prev_pid=0 ==> next_comm=perf
"""


def titles(profile: Profile) -> list[list[str]]:
    """Return the stack of each sample from root to leaf."""
    return [[frame.title for frame in profile.path(leaf)] for leaf in profile.stack.tolist()]


def test_samples_of_perf_have_their_stacks_times_threads_and_processors() -> None:
    found = perf.read_perf_script(USUAL, "x")
    assert titles(found) == [
        ["outer", "__schedule"],
        ["main", "0x7f0000001234", "server+0x11b200", "ns::parse(char const*, int) const"],
    ]
    assert (found.value_types[-1], found.total) == (ValueType("cpu", "nanoseconds"), 2 * 5_025_125)
    assert (found.time_ns.tolist(), found.duration_ns) == ([0, 237_000], 237_000 + 5_025_125)
    assert [(thread.tid, thread.name) for thread in found.threads] == [(2146, "be"), (2145, "server 1")]
    assert found.cpu is not None
    assert found.cpu.tolist() == [0, 1]
    assert {frame.title: frame.kind for frame in found.frames}["__schedule"] is FrameKind.KERNEL
    assert {module.path for module in found.modules} == {"/opt/a b/server", "/opt/a b/server (deleted)"}
    assert [cost.name for cost in found.filter(function="outer").top(by="total")] == ["__schedule", "inner", "outer"]


def test_source_lines_python_functions_and_other_events_are_known() -> None:
    found = perf.read_perf_script(WITH_MORE, "x")
    assert titles(found) == [["Perl_pp_gvsv"], ["main", "A.run"]]
    assert (found.value_types[-1], found.total) == (ValueType("cycles", "count"), 15)
    assert [(thread.pid, thread.tid, thread.name, thread.process) for thread in found.threads] == [
        (9, 10, "perl", "python"),
        (9, 9, "python", "python"),
    ]
    gvsv, run = ({frame.title: frame for frame in found.frames}[name] for name in ("Perl_pp_gvsv", "A.run"))
    assert (gvsv.lines[0].file, gvsv.lines[0].line, gvsv.lines[0].offset) == ("pp_hot.c", 84, 0x35)
    assert (run.kind, run.lines[0].file) == (FrameKind.INTERPRETER, "/srv/app.py")
    assert found.summary.notes == (
        make_note("read_from_perf", event="cycles"),
        make_note("other_events_left_out", count=1, names="instructions"),
        make_note("lines_left_out", count=1),
    )


@pytest.mark.parametrize(
    ("text", "stacks", "total"),
    [(ALONE, [["__memcmp_evex_movbe"], ["_int_malloc"]], 500_000), (TRACEPOINT, [["__schedule"], []], 2)],
)
def test_samples_without_callers_and_events_without_a_period_count(
    text: bytes, stacks: list[list[str]], total: int
) -> None:
    found = perf.read_perf_script(text, "x")
    assert (titles(found), found.total) == (stacks, total)


@pytest.mark.parametrize("text", [USUAL, WITH_MORE, ALONE, TRACEPOINT])
def test_text_of_perf_is_known_by_its_content(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text)
    assert load(path).total == perf.read_perf_script(text, "x").total


def test_stacks_that_are_too_many_to_keep_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = perf.read_perf_script(2 * USUAL, "x")
    monkeypatch.setattr(perf, "_MAX_KEPT", 1)
    found = perf.read_perf_script(2 * USUAL, "x")
    assert (found.frames, found.stack.tolist()) == (expected.frames, expected.stack.tolist())


@pytest.mark.parametrize("line", [b"\t    11b125 f+0x5 (/a)\n", b"\t    11b125 f+0x5 (inlined)\n", b"\tnothing\n"])
def test_stack_that_is_deeper_than_perf_goes_is_refused(line: bytes) -> None:
    header = USUAL.splitlines(keepends=True)[4]
    assert len(perf.read_perf_script(header + 65_535 * b"\t    11b125 f+0x5 (/a)\n", "x").stack) == 1
    with pytest.raises(FormatError, match="a stack of more than"):
        perf.read_perf_script(header + 200_000 * line, "x")


def test_periods_that_no_profile_holds_are_refused() -> None:
    line = ALONE.splitlines(keepends=True)[0].replace(b"     250000", b"9" * 18)
    with pytest.raises(OverflowError):
        perf.read_perf_script(5 * line, "x")
    with pytest.raises(FormatError):
        perf.read_perf_script(b"no sample\n", "x")
