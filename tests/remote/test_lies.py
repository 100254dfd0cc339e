"""Tests of hostile stubs: a false reply causes one clear error, in bounded time and memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from pyprof.collectors.gdb_stub.collector import GdbRemoteCollector
from pyprof.errors import NotTraceable, PyprofError, RemoteError
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions, RemoteOptions
from pyprof.problem_counters import Diagnostics
from tests import warm
from tests.remote.liar import NAMES, PC, SP, TARGET, Answer, honest, instead, lying, registers, reply

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

MAX_MEMORY = 64 << 20
MAX_S = 20.0


def one_batch(answer: Answer, exe: str = "/bin/true", step: int = 0) -> SampleBatch:
    """Return the first batch of a dump of the hostile stub's target."""
    with lying(answer) as stub:
        options = CollectOptions(flush_s=0 if not step else 0.01, stack_size=1 << 16)
        collector = GdbRemoteCollector(
            RemoteOptions(stub.address, exe, step=step, answer_s=0.4), options, Diagnostics()
        )
        try:
            return next(collector.batches())
        finally:
            collector.close()


def numbered(reply_of: Callable[[int], bytes], start: bytes) -> Answer:
    count = 0

    def answer(request: bytes) -> bytes | None:
        nonlocal count
        if not request.startswith(start):
            return None
        count += 1
        return reply_of(count)

    return answer


LIES: dict[str, Answer] = {
    "wrong checksums": lambda request: b"+$" + honest(request) + b"#zz",
    "silence": lambda _: b"",
    "silence after the handshake": instead(b"g", b"+"),
    "no acknowledgement": lambda request: b"$" + honest(request) + b"#",
    "refuses every packet": lambda _: b"-",
    "noise": lambda _: b"login: " * 20000,
    "a packet without an end": lambda _: b"+$" + b"a" * (3 << 20),
    "run lengths that explode": lambda _: b"+$" + b"a*~" * 300000 + b"#00",
    "an escape at the end": lambda _: b"+$}#7d",
    "a description without an end": instead(b"qXfer:features", reply(b"m" + b" " * 1000)),
    "a description that includes itself": instead(
        b"qXfer:features", reply(b"l<target><include href='target.xml'/></target>")
    ),
    "a description that includes ever more": numbered(
        lambda n: reply(b"l<target><include href='%d.xml'/></target>" % n), b"qXfer:features"
    ),
    "a description with entities": instead(
        b"qXfer:features", reply(b'l<!DOCTYPE t [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><target>&b;</target>')
    ),
    "a description in crumbs": instead(b"qXfer:features", reply(b"m ")),
    "a description that is no XML": instead(b"qXfer:features", reply(b"l<target><reg name='")),
    "registers without bounds": instead(
        b"qXfer:features", reply(b"l<target><reg name='rip' bitsize='99999999999'/></target>")
    ),
    "a description without pc": instead(
        b"qXfer:features",
        reply(b"l<target><architecture>i386:x86-64</architecture><reg name='rsp' bitsize='64'/></target>"),
    ),
    "an unknown architecture": instead(b"qXfer:features", reply(b"l<target><architecture>z80</architecture></target>")),
    "a registers packet that is too short": instead(b"g", reply(registers()[:40])),
    "registers that are no hexadecimal": instead(b"g", reply(b"zz" * 8 * len(NAMES))),
    "more memory than was asked for": instead(b"m", reply(b"00" * 100000)),
    "memory that is no hexadecimal": instead(b"m", reply(b"xyz")),
    "threads that are no XML": instead(b"qXfer:threads", reply(b"l<threads><thread id=")),
    "threads with impossible numbers": instead(b"qXfer:threads", reply(b"l<threads><thread id='pzz.1'/></threads>")),
    "no program": instead(b"?", reply(b"W00")),
    "a stop that is none": instead(b"?", reply(b"hello")),
    "a stop in a thread that is none": instead(b"?", reply(b"T05thread:p-1.0;")),
}


@pytest.mark.parametrize("lie", list(LIES))
def test_lie_is_one_clear_error(lie: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(PyprofError) as raised:
            one_batch(LIES[lie])
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < MAX_S
    assert not raised.value.message.endswith(".")
    assert "\n" not in raised.value.message


def test_list_of_threads_without_an_end_is_an_error() -> None:
    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"qXfer:threads"):
            return reply(b"")
        return reply(b"mp1.1,p1.2") if request.startswith((b"qfThreadInfo", b"qsThreadInfo")) else None

    with pytest.raises(RemoteError, match="no end"):
        one_batch(answer)


def test_stub_that_promises_ten_gigabytes_is_asked_for_little() -> None:
    """Announce a huge PacketSize. The size of pyprof's requests stays bounded."""
    seen = []

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"m"):
            seen.append(int(request.split(b",")[1], 16))
        if request.startswith(b"qSupported"):
            return reply(honest(request).replace(b"PacketSize=1000", b"PacketSize=280000000"))
        return None

    assert len(one_batch(answer)) == 2
    assert max(seen) <= 16 << 10


def test_thread_that_vanishes_is_left_out() -> None:
    batch = one_batch(instead(b"Hgp1.2", reply(b"E01")))
    assert batch.tid.tolist() == [1]


def test_short_reads_give_a_short_stack() -> None:
    def answer(request: bytes) -> bytes | None:
        if not request.startswith(b"m"):
            return None
        return reply(b"00" * 24) if request.startswith(b"m%x," % (SP - 128)) else reply(b"E01")

    batch = one_batch(answer)
    assert batch.stack.size.tolist() == [24, 24]
    assert batch.regs[0][batch.arch.pc] == PC


def test_registers_that_are_unavailable_count_as_zero() -> None:
    values = registers()
    batch = one_batch(instead(b"g", reply(b"x" * 16 + values[16:])))
    assert batch.regs[0].tolist()[0] == 0
    assert batch.regs[0][batch.arch.sp] == SP


def test_checksum_that_is_wrong_once_costs_nothing() -> None:
    broken = False

    def answer(request: bytes) -> bytes | None:
        nonlocal broken
        if request == b"g" and not broken:
            broken = True
            return b"+$00#ff" + reply(registers())[1:]
        return None

    assert len(one_batch(answer)) == 2


def test_stub_without_a_program_says_so() -> None:
    with pytest.raises(NotTraceable, match="no program"):
        one_batch(LIES["no program"])


def test_connection_that_drops_keeps_what_was_recorded() -> None:
    count = 0

    def answer(request: bytes) -> bytes | None:
        nonlocal count
        count += request == b"g"
        if count > 20:
            raise ConnectionAbortedError
        return None

    with lying(answer) as stub:
        options = RemoteOptions(stub.address, "/bin/true", step=1, answer_s=0.4)
        collector = GdbRemoteCollector(options, CollectOptions(), Diagnostics())
        try:
            assert sum(len(batch) for batch in collector.batches()) >= 18
            assert any(note.reason == "stub_lost_early" for note in collector.stats().notes)
        finally:
            collector.close()


def test_target_of_a_probe_is_continued_not_detached_from() -> None:
    """Check that a target without processes is continued: OpenOCD and J-Link do not document the effect of D."""

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"qSupported"):
            return reply(b"PacketSize=400;qXfer:features:read+")
        if request == b"?":
            return reply(b"S05")
        return reply(b"m1") if request == b"qfThreadInfo" else reply(b"l") if request == b"qsThreadInfo" else None

    with lying(answer) as stub:
        collector = GdbRemoteCollector(
            RemoteOptions(stub.address, "/bin/true", answer_s=0.4), CollectOptions(flush_s=0), Diagnostics()
        )
        assert len(next(collector.batches())) == 1
        collector.close()
        stub.close()
        assert stub.asked[-1] == b"vCont;c"


def test_board_is_interrupted_and_resumed_around_each_sample() -> None:
    def answer(request: bytes) -> bytes | None:
        return reply(b"") if request.startswith(b"qqemu") else None

    with lying(answer) as stub:
        collector = GdbRemoteCollector(
            RemoteOptions(stub.address, "/bin/true", answer_s=1), CollectOptions(rate_hz=200), Diagnostics()
        )
        batches = collector.batches()
        samples = len(next(batches)) + len(next(batches))
        collector.close()
        stub.close()
        resumes = sum(asked == b"vCont;c" for asked in stub.asked)
        assert samples > 4
        assert resumes == stub.interrupts
        assert stub.asked[-1] == b"D;1"


def test_command_line_says_one_sentence() -> None:
    with lying(LIES["registers without bounds"]) as stub:
        done = warm.run("dump", "--gdb", stub.address)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("pyprof: ")
    assert len(done.stderr.splitlines()) <= 2


def test_description_of_the_honest_stub_is_taken() -> None:
    assert len(one_batch(lambda _: None)) == 2
    assert TARGET.count(b"<reg") == len(NAMES)
