"""Records of switches in the rings, in bulk: runs of them become columns, whatever their length.

See linux/perf_event.h. PERF_RECORD_SWITCH is a header and the words (pid, tid), time, (cpu, 0). The variant for the
whole machine (SWITCH_CPU_WIDE) has one more word after the header. The header states the direction, and whether the
thread was preempted.
"""

from __future__ import annotations

import numpy as np

from pyprof.collectors.perf.records import I64, LOST, LOST_SAMPLES, SAMPLE, U64, OtherRecord
from pyprof.collectors.perf.ring import Ring
from pyprof.collectors.switch_events import BLOCKED, IN, PREEMPTED, Gap
from pyprof.records import dataclass, field

SWITCH, SWITCH_CPU_WIDE = 14, 15
MISC_OUT, MISC_PREEMPTED = 1 << 13, 1 << 14
_TID, _TIME = -3, -2
_KIND_AND_SIZE = np.uint64(0xFFFF_0000_FFFF_FFFF)
_FIRST_LOOK = 16
_FULL = 1 << 16
"""Maximum size of a perf record in bytes."""
_FOREVER_NS = 2**62


@dataclass(slots=True)
class SwitchScan:
    """The records of context switches in all perf rings at some moment; see perf.records.Scan.

    Attributes:
        ends: For each run of switches: the index of the word after each record, and the record size in words.
        gaps: Times of which records were lost.
        heard_ns: Time of the last record of each processor.
    """

    samples: list[I64] = field(default_factory=list)
    others: list[OtherRecord] = field(default_factory=list)
    tails: list[tuple[Ring, int]] = field(default_factory=list)
    ends: list[tuple[I64, int]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    heard_ns: dict[int, int] = field(default_factory=dict)
    broken: int = 0

    def release_records(self) -> None:
        for ring, tail in self.tails:
            ring.release_records(tail)

    def read_switches(self, words: U64) -> tuple[I64, I64, I64, I64]:
        """Return columns (pid, tid, time_ns, kind) of all context switches."""
        if not self.ends:
            none = np.zeros(0, np.int64)
            return none, none, none, none
        end = np.concatenate([ends for ends, _ in self.ends])
        size = np.repeat([size for _, size in self.ends], [len(ends) for ends, _ in self.ends])
        misc = words[end - size].view(np.int64) >> 32
        kind = np.where(misc & MISC_OUT, np.where(misc & MISC_PREEMPTED, PREEMPTED, BLOCKED), IN)
        ids = words[end + _TID]
        pid, tid = (ids & np.uint64(0xFFFF_FFFF)).astype(np.int64), (ids >> np.uint64(32)).astype(np.int64)
        return pid, tid, words[end + _TIME].view(np.int64), kind


def scan_ring(ring: Ring, words: U64, until_ns: int, into: SwitchScan, heard_ns: int) -> int:
    """Add the context-switch records of a perf ring up to until_ns.

    Args:
        heard_ns: Time of the last earlier record.

    Returns:
        Time of the last record.
    """
    position, head = ring.tail, ring.head
    if not 0 <= head - position <= ring.size:
        into.broken += 1
        into.tails.append((ring, head))
        return heard_ns
    while position < head:
        at = position & (ring.size - 1)
        word = ring.first + at // 8
        header = int(words[word])
        kind, size = header & 0xFFFF_FFFF, header >> 48
        if size < 32 or size & 7 or size > head - position:
            into.broken += 1
            position = head
            break
        ring.make_contiguous(at, size)
        step = size // 8
        if kind in (SWITCH, SWITCH_CPU_WIDE):
            run = _run(words, word, step, min(head - position, ring.size - at) // size)
            late = words[word + step + _TIME : word + run * step : step] > np.uint64(until_ns)
            stop = bool(late.any())
            run = int(late.argmax()) if stop else run
            if run:
                heard_ns = int(words[word + run * step + _TIME])
                into.ends.append((word + np.arange(1, run + 1, dtype=np.int64) * step, step))
            position += run * size
            if stop:
                break
            continue
        time_ns = int(words[word + (2 + 1 if kind == SAMPLE else step + _TIME)])
        if time_ns > until_ns:
            break
        if kind in (LOST, LOST_SAMPLES):
            into.gaps.append((heard_ns, time_ns))
        heard_ns = time_ns
        if kind == SAMPLE:
            into.samples.append(np.array([word], np.int64))
        else:
            body = words[word + 1 : word + step + _TID].tobytes()
            into.others.append(OtherRecord(kind, header >> 32 & 0xFFFF, time_ns, body))
        position += size
    into.tails.append((ring, position))
    if head - ring.tail > ring.size - min(_FULL, ring.size // 8):  # the next records may already be lost
        into.gaps.append((heard_ns, _FOREVER_NS))
    return heard_ns


def _run(words: U64, word: int, step: int, most: int) -> int:
    """Return the number of consecutive context-switch records of the same kind and size, including the one at `word`;
    at least 1.
    """
    look, run = _FIRST_LOOK, 1
    first = words[word] & _KIND_AND_SIZE
    while run < most:
        upto = min(look, most)
        same = words[word + run * step : word + upto * step : step] & _KIND_AND_SIZE == first
        if not same.all():
            return run + int(same.argmin())
        run, look = upto, 4 * look
    return max(run, 1)
