"""Synthetic profiles: a small one with every special case, deep and wide ones, and a hypothesis strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import ModuleSummary, Shown, Stops, Summary
from pyprof.model.unwind_result import Trust
from pyprof.problem_counters import Problem

START_NS = 1_700_000_000_123_456_789
PERIOD_NS = 10_000_000
COUNT_AND_CPU = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))

LIBC = ModuleInfo("/usr/lib/libc.so.6", "aa" * 20, 0x7F00_0000_0000, 0x7F00_0020_0000, 0x28000, True, False)
SERVER = ModuleInfo("/opt/server/bin/server", "bb" * 20, 0x40_0000, 0x60_0000, 0x1000, True, True)
STRIPPED = ModuleInfo("/opt/server/lib/libplugin.so", "", 0x7F10_0000_0000, 0x7F10_0010_0000, 0, False, False)
MODULES = (LIBC, SERVER, STRIPPED)

LABELS = (("env", "prod"), ("note", "<b>&"))
EVIL = '</script><img src=x onerror="document.title=1">'
WEIRD = "ns::f<a;b>(char const*, \n\t'\\', \u2028 \u00fcml\u00e4ut \U0001f525)"


def code(function: str, module: int = 1, rel: int = 0x100, trust: Trust = Trust.EH_FRAME, **more: object) -> Frame:
    """Return a native frame of a caller with one function. Further arguments are those of Line."""
    pc = (MODULES[module].start if module >= 0 else 0xDEAD_0000) + rel
    lookup = pc if trust == Trust.CONTEXT else pc - 1
    line = Line(function, f"_Z{function}", 4, **more)  # type: ignore[arg-type]
    return Frame(FrameKind.NATIVE, pc, lookup, rel, module, (line,), trust, function)


def unknown(module: int, rel: int) -> Frame:
    if module < 0:
        return Frame(FrameKind.NATIVE, rel, rel - 1, rel, -1, (), Trust.FP, f"0x{rel:x}")
    info = MODULES[module]
    title = f"{info.name}+0x{rel:x}"
    return Frame(FrameKind.NATIVE, info.start + rel, info.start + rel - 1, rel, module, (), Trust.FP, title)


def marker(title: str) -> Frame:
    return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, title)


@dataclass
class Builder:
    """A profile under construction from stacks."""

    threads: list[ThreadInfo] = field(default_factory=lambda: [ThreadInfo(100, 100, "main", "server")])
    frames: list[Frame] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [-1])
    frame: list[int] = field(default_factory=lambda: [-1])
    samples: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    _ids: dict[Frame, int] = field(default_factory=dict)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def node(self, stack: Sequence[Frame], below: int = 0) -> int:
        """Add a stack, given from root to leaf, and return its leaf node."""
        node = below
        for frame in stack:
            at = self._ids.get(frame)
            if at is None:
                at = self._ids[frame] = len(self.frames)
                self.frames.append(frame)
            key = (node, at)
            if key not in self._children:
                self._children[key] = len(self.parent)
                self.parent.append(node)
                self.frame.append(at)
            node = self._children[key]
        return node

    def sample(self, leaf: int, thread: int = 0, count: int = 1, cpu_ns: int = PERIOD_NS) -> None:
        self.samples.append((len(self.samples) * PERIOD_NS, leaf, thread, count, cpu_ns))

    def build(self, modules: tuple[ModuleInfo, ...] = MODULES, **more: object) -> Profile:
        columns = np.array(self.samples, np.int64).reshape(-1, 5).T
        profile = Profile(
            value_types=COUNT_AND_CPU,
            period_ns=PERIOD_NS,
            start_ns=START_NS,
            duration_ns=3_000_000_000,
            title="server (pid 100)",
            frames=tuple(self.frames),
            parent=np.array(self.parent, np.int32),
            frame=np.array(self.frame, np.int32),
            modules=modules,
            threads=tuple(self.threads),
            time_ns=START_NS + columns[0],
            stack=columns[1].astype(np.int32),
            thread=columns[2].astype(np.int32),
            values=np.ascontiguousarray(columns[3:].T),
            summary=Summary(samples=len(self.samples), threads=len(self.threads), duration_s=3.0),
        )
        return replace(profile, **more)  # type: ignore[arg-type]


SUMMARY = Summary(
    samples=1187,
    threads=4,
    duration_s=3.0,
    rate_wanted=99.0,
    rate_reached=98.4,
    skipped=3,
    errors={"thread_held_by_debugger": 2},
    ends={"root": 1180, "no_rule": 5, "unreadable": 2},
    trust={"context": 1187, "eh_frame": 9120, "fp": 340, "sigreturn": 2},
    stops=Stops(1042, 21.5, 63.0, 140.25, 0.0071),
    unchanged=120,
    blocked=25,
    modules=(
        ModuleSummary(SERVER.path, SERVER.build_id, 6200),
        ModuleSummary(LIBC.path, LIBC.build_id, 3100),
        ModuleSummary(
            STRIPPED.path,
            "",
            340,
            (
                Problem("no symbols: its functions are shown by address", "apt-get install libplugin-dbg"),
                Problem("no unwind tables: frames are found by frame pointers"),
            ),
        ),
    ),
    profiler_cpu_s=0.41,
    profiler_max_rss_kb=61_440,
    notes=(make_note("rate_lowered", wanted=99, reached=98.4, limit=0.5),),
    shown=Shown(
        "cpu", "nanoseconds", 11_870_000_000, {"root": 11_800_000_000, "no_rule": 50_000_000, "unreadable": 20_000_000}
    ),
)


def golden() -> Profile:
    """Return a profile with two processes, four threads, inlined, Python and kernel frames, and difficult names."""
    start = code("_start", rel=0x10)
    main = code("main", rel=0x200, file="/src/server/main.cc", line=42)
    inlined = Frame(
        FrameKind.NATIVE,
        0x40_0400,
        0x40_03FF,
        0x400,
        1,
        (
            Line("std::min(int, int)", "_ZSt3minii", 0, "/usr/include/c++/algo.h", 233),
            Line("clamp", "clamp", 0, "/src/server/util.h", 17),
            Line("handle(Request&)", "_Z6handleR7Request", 0x40, "/src/server/handle.cc", 118),
        ),
        Trust.EH_FRAME,
        "handle(Request&)",
    )
    parse = code("parse", rel=0x500, file="/src/server/parse.cc", line=9)
    parse_elsewhere = code("parse", rel=0x540, trust=Trust.FP, file="/src/server/parse.cc", line=31)
    memcpy = code("memcpy", 0, 0x900, Trust.CONTEXT)
    poll = code("epoll_wait", 0, 0x990, Trust.CONTEXT)
    clone = code("clone", 0, 0x30)
    python = Frame(
        FrameKind.INTERPRETER, 0, 0, 0, -1, (Line("<module>", "<module>", 0, "app.py", 3),), Trust.CONTEXT, "<module>"
    )
    kernel = Frame(FrameKind.KERNEL, 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_0000, 0, -1, (), Trust.CONTEXT, "do_sys")
    builder = Builder(
        [
            ThreadInfo(100, 100, "main", "server", labels=LABELS),
            ThreadInfo(100, 101, "worker;1", "server", labels=LABELS),
            ThreadInfo(100, 102, EVIL, "server", labels=LABELS),
            ThreadInfo(200, 200, "", "child", labels=LABELS),
        ]
    )
    stacks = [
        ([start, main, inlined, memcpy], 0, 5),
        ([start, main, parse, memcpy], 0, 3),
        ([start, main, parse_elsewhere], 0, 2),
        ([start, main, poll, kernel], 0, 1),
        ([clone, code("work", rel=0x700), code("parse", rel=0x501), memcpy], 1, 4),
        ([clone, code("work", rel=0x700), unknown(2, 0x1234), unknown(-1, 0xDEAD)], 1, 2),
        ([marker("[stack cut off: no rule]"), unknown(2, 0x77), code(EVIL, rel=0x800)], 2, 2),
        ([marker("[stack cut off: unreadable]"), code(WEIRD, rel=0x900)], 2, 1),
        ([start, main, python, code("eval", rel=0xA00, trust=Trust.CONTEXT)], 3, 3),
    ]
    for turn in range(5):
        for stack, thread, times in stacks:
            if turn < times:
                builder.sample(builder.node(stack), thread)
    builder.sample(builder.node([start, main, poll]), 0, cpu_ns=0)
    return builder.build(summary=SUMMARY)


def deep(depth: int = 20_000, samples: int = 20) -> Profile:
    """Return a profile of one recursion, with samples in its deeper half and at its leaf."""
    builder = Builder()
    node = builder.node([code("main", rel=0x10)])
    recurse = code("recurse", rel=0x20)
    nodes = []
    for _ in range(depth - 2):
        node = builder.node([recurse], node)
        nodes.append(node)
    for nth in range(samples):
        builder.sample(nodes[-1 - nth * (len(nodes) // 2) // samples])
    builder.sample(builder.node([code("the_leaf", 0, 0x30, Trust.CONTEXT)], node))
    return builder.build(title="deep")


def wide(nodes: int = 100_000, functions: int = 3000) -> Profile:
    """Return a profile whose tree has this many nodes, with samples on the leaves, without randomness."""
    builder = Builder()
    frames = [code(f"function_{n}", n % 3, 0x100 + 16 * n) for n in range(functions)]
    tree = [builder.node([code("main", rel=0x10)])]
    step = 0
    while len(builder.parent) < nodes + 1:
        step += 1
        below = tree[step * 7919 % len(tree)]
        node = builder.node([frames[step * 104729 % functions]], below)
        if step % 3:
            tree.append(node)
        builder.sample(node)
    return builder.build(title="wide")


def many(samples: int = 500_000, stacks: int = 2000) -> Profile:
    """Return a profile like that of 8 threads on 4 processors in eight minutes at 130 Hz each.

    A few stacks are frequent, most are rare, and half of them occur twice in a row.
    """
    profile = wide(2 * stacks, 1000)
    random = np.random.default_rng(7)
    leaves = random.choice(profile.stack, stacks, replace=False)
    which = (stacks * random.random(samples) ** 3).astype(np.int64)
    which[8:] = np.where(random.random(samples - 8) < 0.5, which[:-8], which[8:])
    thread = np.arange(samples, dtype=np.int32) % 8
    cpu_ns = random.normal(PERIOD_NS, PERIOD_NS / 20, samples).astype(np.int64)
    return replace(
        profile,
        threads=tuple(ThreadInfo(100, 100 + n, f"worker-{n}", "server") for n in range(8)),
        duration_ns=480_000_000_000,
        time_ns=START_NS + np.sort(random.integers(0, 480_000_000_000, samples)),
        stack=leaves[which],
        thread=thread,
        values=np.stack([np.ones(samples, np.int64), cpu_ns], 1),
        cpu=np.where(random.random(samples) < 0.05, random.integers(0, 4, samples), thread % 4).astype(np.int32),
        title="many",
    )


_texts = st.text(max_size=12) | st.sampled_from([EVIL, WEIRD, "a;b", "x 7", "\udc80", ""])
_lines = st.builds(
    Line,
    _texts,
    _texts,
    st.integers(0, 99),
    st.none() | _texts,
    st.integers(0, 500) | st.just(2**31 - 1),
    st.booleans(),
)
_frames = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-1, len(MODULES) - 1),
    st.lists(_lines, max_size=3).map(tuple),
    st.sampled_from(Trust),
    _texts,
)
_threads = st.builds(ThreadInfo, st.integers(1, 3), st.integers(1, 2**22), _texts, _texts)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Generate small profiles with arbitrary contents."""
    frames = draw(st.lists(_frames, min_size=1, max_size=6))
    builder = Builder(draw(st.lists(_threads, min_size=1, max_size=3)))
    stacks = draw(st.lists(st.lists(st.sampled_from(frames), max_size=5), min_size=0, max_size=6))
    for stack in stacks:
        thread = draw(st.integers(0, len(builder.threads) - 1))
        builder.sample(builder.node(stack), thread, draw(st.integers(1, 5)), draw(st.integers(0, 2**40)))
    return builder.build(title=draw(_texts))
