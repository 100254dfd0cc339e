"""The ring buffers of perf_events, one for each processor, and their records as columns.

All rings of a collector are adjacent in one range of memory, so they are one array, and a batch refers to records of
several rings without a copy. Spare room follows each ring. The rest of a record that wraps around the ring's end is
copied there, so that the record is contiguous.

See linux/perf_event.h, struct perf_event_mmap_page: data_head at 1024, data_tail at 1032.

Samples are read as columns over the ring's own words, all other records one by one. See linux/perf_event.h. A record
begins with a word {type: u32, misc: u16, size: u16}, and its size is a multiple of 8. With SAMPLE_TYPE of
perf/event_attributes.py a sample consists of these words: header, ip, (pid, tid), time, (cpu, 0), abi, registers, stack
size, stack, and the number of valid stack bytes. Every other record ends with (pid, tid), time, (cpu, 0).
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.sampled_arch import HERE, PerfArch, order_reads
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, refusal, ring_owner
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import Mapping
from pyprof.model.marker_frames import KERNEL_HALF, KernelStack

_PAGE = mmap.PAGESIZE
_HEAD, _TAIL = 1024 // 8, 1032 // 8
_SPILL = (1 << 16) + _PAGE
MIN_RING = 64 << 10
_MAX_RECORD_BYTES = 1 << 16
_FOREVER_NS = 2**62
_MUCH = 4
"""A perf ring should be read when more than 1/_MUCH of it is used."""


class Ring:
    """The perf ring buffer of one processor.

    Attributes:
        first: Index of the ring's first data word in Rings.words.
        size: Bytes of data, a power of two.
        discarded: Position in bytes up to which records were discarded, -1 if none were. A LOST record
            directly after it counts discarded records.
        heard_ns: Time of the last record that was read.
    """

    discarded = -1
    heard_ns = 0

    def __init__(self, words: npt.NDArray[np.uint64], control: int, size: int) -> None:
        self._words = words
        self._control = control
        self.first = control + _PAGE // 8
        self.size = size

    @property
    def head(self) -> int:
        """Number of bytes that the kernel has written to the perf ring since the beginning. Data up to there
        may be read after this call.
        """
        head = int(self._words[self._control + _HEAD])
        order_reads()
        return head

    @property
    def tail(self) -> int:
        """Number of bytes that the reader of the perf ring has released."""
        return int(self._words[self._control + _TAIL])

    def release_records(self, tail: int) -> None:
        """Release all data of a perf ring before `tail`, so that the kernel may overwrite it."""
        order_reads()
        self._words[self._control + _TAIL] = tail

    def make_contiguous(self, at: int, size: int) -> None:
        """Make a perf record contiguous if it wraps around the ring's end, by copying its rest behind the
        end.

        Args:
            at: Offset of the record in the data.
            size: Its size in bytes.
        """
        over = at + size - self.size
        if over > 0:
            end = self.first + self.size // 8
            self._words[end : end + over // 8] = self._words[self.first : self.first + over // 8]


class Rings:
    """The perf ring buffers of several processors.

    Attributes:
        words: Memory of all rings as 64-bit words. Ring.first is where the data of a ring begins.
        rings: Ring by processor.
        owners: Descriptor of the event that owns each processor's ring.
    """

    def __init__(self, cpus: Sequence[int], size: int, wakes: bool = False, more: Sequence[int] = ()) -> None:
        """Map the perf ring buffers of processors into memory.

        Args:
            cpus: Processors that get a ring now.
            size: Bytes of each ring, a power of two.
            wakes: True if the kernel should wake a poll on the owner's descriptor when much of its ring is
                used.
            more: Processors that may get a ring later, by ring_on().

        Raises:
            PerfNotAllowed: The kernel permits no ring.
            RingTooLarge: The kernel permits no ring of this size. It may permit a smaller one.
        """
        self.size = size
        self._owner = ring_owner(size // _MUCH if wakes else 0)
        self._stride = _PAGE + size + _SPILL
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | libc.MAP_NORESERVE
        places = dict.fromkeys([*cpus, *more])
        self._memory = mmap.mmap(-1, self._stride * len(places), flags=flags)
        self._address = libc.address_of(self._memory)
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64)
        self._places = {cpu: place * self._stride for place, cpu in enumerate(places)}
        self.rings: dict[int, Ring] = {}
        self.owners: dict[int, int] = {}
        try:
            for cpu in cpus:
                self._map(cpu)
        except BaseException:
            self.close()
            raise

    def _map(self, cpu: int) -> None:
        """Map a processor's perf ring. Its owner is an event that counts nothing, so that the ring outlives the events
        that fill it.
        """
        fd = libc.perf_event_open(self._owner, 0, cpu)
        if -fd == errno.ENODEV:  # the processor went offline
            return
        if fd < 0:
            raise refusal(-fd, 0)
        self.owners[cpu] = fd
        place = self._places[cpu]
        error = -libc.map_over(self._address + place, _PAGE + self.size, fd)
        if error:
            raise _refused(error, self.size)
        self.rings[cpu] = Ring(self.words, place // 8, self.size)

    def ring_on(self, cpu: int) -> int:
        """Return the descriptor of the event that owns a processor's perf ring. The ring is mapped if it does
        not exist yet. The result is negative if that fails.

        Raises:
            PerfNotAllowed: The kernel permits no ring.
        """
        if cpu not in self.owners and cpu in self._places:
            try:
                self._map(cpu)
            except PerfNotAllowed:
                os.close(self.owners.pop(cpu, -1))
                raise
        return self.owners.get(cpu, -1)

    @property
    def much_used(self) -> bool:
        """True if a perf ring is so full that the rings should be read now."""
        return any(ring.head - ring.tail > self.size // _MUCH for ring in self.rings.values())

    def close(self) -> None:
        """Unmap the perf rings. Arrays that still refer to their memory then contain zeros."""
        for cpu in self.rings:
            libc.map_over(self._address + self._places[cpu], _PAGE + self.size, -1)
        for fd in self.owners.values():
            os.close(fd)
        self.rings.clear()
        self.owners.clear()


class RingTooLarge(PerfNotAllowed):
    """The error that the kernel refuses a perf ring of this size. It may permit a smaller one."""


def _refused(error: int, size: int) -> PerfNotAllowed:
    if error in (errno.EPERM, errno.ENOMEM):
        return RingTooLarge(
            f"The kernel gives no ring of {size >> 10} KB for each processor.",
            "sudo sysctl kernel.perf_event_mlock_kb=4096, or: ulimit -l unlimited",
        )
    return PerfNotAllowed(f"The ring of perf_events cannot be mapped: errno {error}.", "--collector ptrace")


def list_online_cpus() -> list[int]:
    """Return the numbers of the online processors.

    Raises:
        OSError: The kernel does not list them.
    """
    with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
        return _listed(file.read())


def list_present_cpus() -> list[int]:
    """Return the numbers of the processors of the machine, including offline ones."""
    with open("/sys/devices/system/cpu/present", encoding="ascii") as file:
        return _listed(file.read())


def _listed(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus


def open_rings(cpus: list[int], size: int, exactly: bool, wakes: bool) -> Rings:
    """Open the largest perf rings up to `size` bytes that the kernel permits.

    Args:
        cpus: Processors that get a ring.
        size: Maximum size in bytes, a power of two.
        exactly: True to raise an error instead of opening smaller rings.
        wakes: True if the kernel should wake a poll when much of a ring is used.
    """
    while True:
        try:
            return Rings(cpus, size, wakes, list_present_cpus())
        except RingTooLarge:
            if exactly or size <= MIN_RING:
                raise
            size //= 2


U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

LOST, COMM, EXIT, THROTTLE, UNTHROTTLE, FORK, SAMPLE, MMAP2, LOST_SAMPLES = 2, 3, 4, 5, 6, 7, 9, 10, 13
MISC_COMM_EXEC = 1 << 13
_OF_PROCESSES = frozenset((COMM, EXIT, FORK, MMAP2))
"""Types of perf records whose first word has the pid, and for EXIT and FORK also the parent's pid."""

_KIND_AND_SIZE = np.uint64(0xFFFF_0000_FFFF_FFFF)
TIME = 3
"""Index of the 64-bit word in a perf sample record that has its time."""
TID = 2
"""Index of the 64-bit word in a perf sample record that has the pid in its low half and the tid in its high half."""
CPU, _ABI, _REGS = 4, 5, 6
_CHAIN = 5
"""Index of the 64-bit word in a perf sample record that has the number of kernel frames. The frames and then
all other fields follow it.
"""
_MARKS = 2**64 - 4095
OVERHEAD = 8 * (_REGS + len(HERE.words) + 2)
"""Bytes of a perf sample record without its stack."""

ABI_32, ABI_64 = 1, 2


@dataclass(slots=True)
class OtherRecord:
    """A record of perf's rings that is not a sample.

    Attributes:
        kind: Type of the record.
        misc: Flags of the record.
        time_ns: Its time by CLOCK_MONOTONIC.
        body: Its contents without the header and without the three words at the end.
    """

    kind: int
    misc: int
    time_ns: int
    body: bytes


@dataclass(slots=True)
class Scan:
    """The records that one reading has found in all perf rings.

    Attributes:
        samples: Indices of the samples' first words, one array for each run of equal records.
        others: The records that are not samples.
        tails: (ring, position in bytes up to which it was read).
        broken: Number of rings with invalid data.
        recorded_pids: Pids of the recording's processes, or None if all records are wanted.
        strange: (time, word, size in words) of records of unknown processes. add_descendants() moves those of
            new children to `others` after all rings were read.
        gaps: Spans of time, as (begin, end), in which records of a ring were lost.
    """

    samples: list[I64] = field(default_factory=list)
    others: list[OtherRecord] = field(default_factory=list)
    tails: list[tuple[Ring, int]] = field(default_factory=list)
    broken: int = 0
    recorded_pids: Set[int] | None = None
    strange: list[tuple[int, int, int]] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def add_other(self, words: U64, header: int, time_ns: int, word: int, size: int) -> None:
        """Decode a perf record that is not a sample, and add it to `others`. `size` is its size in 64-bit words."""
        body = words[word + 1 : word + size - 3].tobytes()
        self.others.append(OtherRecord(header & 0xFFFF_FFFF, header >> 32 & 0xFFFF, time_ns, body))

    def add_descendants(self, words: U64) -> None:
        """Move records of processes that descend from a recorded process from `strange` to `others`. The
        record of a fork may be in another ring buffer than later records of the child.
        """
        forks = [(record.time_ns, record.body[:4]) for record in self.others if record.kind == FORK]
        # the earliest fork counts
        births = {int.from_bytes(pid, "little"): at for at, pid in sorted(forks, reverse=True)}
        if self.recorded_pids is None or not births.keys() - self.recorded_pids:
            return
        for time_ns, word, size in sorted(self.strange):
            header, ids = int(words[word]), int(words[word + 1])
            pid, forked = ids & 0xFFFF_FFFF, header & 0xFFFF_FFFF == FORK
            if births.get(pid, time_ns + 1) <= time_ns or (forked and births.get(ids >> 32, time_ns + 1) <= time_ns):
                births[pid] = min(births.get(pid, time_ns), time_ns)
                self.add_other(words, header, time_ns, word, size)

    def release_records(self) -> None:
        for ring, tail in self.tails:
            ring.release_records(tail)

    def discard_records(self) -> None:
        """Release all records that were read. A later record about losses among them does not count."""
        self.release_records()
        for ring, tail in self.tails:
            ring.discarded = tail


def scan_ring(ring: Ring, words: U64, until_ns: int, into: Scan) -> None:
    """Add the records of a perf ring up to until_ns to a Scan. Because of the limit, records of several rings
    can be sorted by time.
    """
    position, head, known, view = ring.tail, ring.head, into.recorded_pids, words.data
    if not 0 <= head - position <= ring.size:
        into.broken += 1
        into.tails.append((ring, head))
        return
    while position < head:
        at = position & (ring.size - 1)
        word = ring.first + at // 8
        header: int = view[word]
        size = header >> 48
        if size < 32 or size & 7 or size > head - position:
            into.broken += 1
            position = head
            break
        ring.make_contiguous(at, size)
        if header & 0xFFFF_FFFF == SAMPLE:
            run = _run(words, word, size, min(head - position, ring.size - at) // size)
            late = words[word + TIME : word + TIME + run * (size // 8) : size // 8] > np.uint64(until_ns)
            stop = bool(late.any())
            if stop:
                run = int(late.argmax())
            if run:
                into.samples.append(word + np.arange(run, dtype=np.int64) * (size // 8))
                ring.heard_ns = view[word + (run - 1) * (size // 8) + TIME]
            position += run * size
            if stop:
                break
        else:
            time_ns: int = view[word + size // 8 - 2]
            if time_ns > until_ns:
                break
            kind, ids = header & 0xFFFF_FFFF, view[word + 1]
            if kind == LOST and position == ring.discarded:
                position += size
                continue
            if kind in (LOST, LOST_SAMPLES):
                into.gaps.append((ring.heard_ns, time_ns))
            ring.heard_ns = time_ns
            is_ours = known is None or kind not in _OF_PROCESSES or ids & 0xFFFF_FFFF in known
            if is_ours or (kind == FORK and known is not None and ids >> 32 in known):
                into.add_other(words, header, time_ns, word, size // 8)
            else:
                into.strange.append((time_ns, word, size // 8))
            position += size
    into.tails.append((ring, position))
    if position == head and head - ring.tail > ring.size - min(_MAX_RECORD_BYTES, ring.size // 8):
        into.gaps.append((ring.heard_ns, _FOREVER_NS))  # the next records may already be lost


def _run(words: U64, word: int, size: int, most: int) -> int:
    """Return the number of consecutive perf sample records of equal size, from the one at `word` on; at least 1."""
    if most < 2:
        return 1
    heads = words[word : word + most * (size // 8) : size // 8] & _KIND_AND_SIZE
    same = heads == heads[0]
    return most if same.all() else int(same.argmin())


@dataclass(slots=True)
class SampleRecords:
    """Columns of n perf samples in order of time.

    Attributes:
        time_ns: Time of each sample by CLOCK_MONOTONIC.
        pid: Process of each sample.
        tid: Thread of each sample.
        cpu: Processor of each sample.
        regs: Registers (n, k), in the columns of perf_arch.WIDE.
        base: Address of the stack copy in the target.
        offset: Offset of the stack copy in the rings' memory, in bytes.
        size: Number of valid bytes of the stack copy.
        kernel_stack: Index in kernel_stacks of each sample's kernel frames, None if there are none.
        kernel_stacks: The different stacks of kernel frames; the first one is ().
        narrow: True for 32-bit code, whose registers are in the same columns.
    """

    time_ns: I64
    pid: npt.NDArray[np.int32]
    tid: npt.NDArray[np.int32]
    cpu: npt.NDArray[np.int32]
    regs: U64
    base: U64
    offset: I64
    size: I64
    kernel_stack: npt.NDArray[np.int32] | None
    kernel_stacks: tuple[KernelStack, ...]
    narrow: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time_ns)

    def select_rows(self, rows: I64) -> SampleRecords:
        """Return the samples at these ascending indices."""
        if len(rows) == len(self):
            return self
        return SampleRecords(
            self.time_ns[rows],
            self.pid[rows],
            self.tid[rows],
            self.cpu[rows],
            self.regs[rows],
            self.base[rows],
            self.offset[rows],
            self.size[rows],
            None if self.kernel_stack is None else self.kernel_stack[rows],
            self.kernel_stacks,
            self.narrow[rows],
        )


def read_samples(
    words: U64, pieces: list[I64], chains: bool = False, pids: Iterable[int] | None = None, machine: PerfArch = HERE
) -> tuple[SampleRecords, npt.NDArray[np.int32]]:
    """Read perf samples as columns.

    Args:
        words: Memory of the rings as 64-bit words.
        pieces: Indices of the samples' first words.
        chains: True if the samples have kernel frames.
        pids: Read only samples of these processes; None for all.
        machine: Architecture of the records.

    Returns:
        (the samples with user registers, pids of the samples without user registers). The pid of an idle
            processor is 0.
    """
    first = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    if pids is not None:
        first = first[np.isin(words[first + TID].astype(np.uint32), np.array([*pids], np.uint32))]
    at = first + _chain_lengths(words, first) + 1 if chains else first  # start of the fields after the chain
    abi = words[at + _ABI]
    usable = (abi == ABI_64) | (abi == ABI_32)
    left_out = words[first[~usable] + TID].view(np.int32)[::2]
    if len(left_out):
        first, at = first[usable], at[usable]
    time_ns = words[first + TIME].view(np.int64)
    if len(pieces) > 1:
        order = np.argsort(time_ns, kind="stable")
        first, at, time_ns = first[order], at[order], time_ns[order]
    kernel_stack, kernel_stacks = _kernel_frames(words, first) if chains else (None, ((),))
    ids = words[first + TID].view(np.int32).reshape(-1, 2)
    stack = at + (_REGS + len(machine.words) + 1)
    room = words[stack - 1].view(np.int64)
    valid = words[np.where(room > 0, stack + room // 8, at)].view(np.int64)
    regs = words[at[:, None] + (_REGS + np.array(machine.words))]
    return (
        SampleRecords(
            time_ns=time_ns,
            pid=ids[:, 0],
            tid=ids[:, 1],
            cpu=words[first + CPU].astype(np.int32),
            regs=regs,
            base=words[at + (_REGS + machine.words[machine.wide.sp])],
            offset=stack * 8,
            size=np.clip(valid, 0, room) & ~7,
            kernel_stack=kernel_stack,
            kernel_stacks=kernel_stacks,
            narrow=words[at + _ABI] == ABI_32,
        ),
        left_out,
    )


NO_SAMPLES = read_samples(np.zeros(0, np.uint64), [])[0]


def _chain_lengths(words: U64, first: I64) -> I64:
    # a broken length must not reach beyond the record, whose size in words is in the first word's high bits
    within: U64 = np.minimum(words[first + _CHAIN], words[first] >> np.uint64(51))
    return within.astype(np.int64)


def _kernel_frames(words: U64, first: I64) -> tuple[npt.NDArray[np.int32], tuple[KernelStack, ...]]:
    """Return (number of each sample's kernel call chain, the different chains), without the kernel's context
    markers in the chains.
    """
    known: dict[bytes, int] = {}
    kernel_stacks: dict[KernelStack, int] = {(): 0}
    kernel_stack = np.zeros(len(first), np.int32)
    count = _chain_lengths(words, first).tolist()
    for lane, (start, n) in enumerate(zip((first + _CHAIN + 1).tolist(), count, strict=True)):
        chain = words[start : start + n]
        key = chain.tobytes()
        if key not in known:
            frames = tuple(pc for pc in chain.tolist() if KERNEL_HALF <= pc < _MARKS)
            known[key] = kernel_stacks.setdefault(frames, len(kernel_stacks))
        kernel_stack[lane] = known[key]
    return kernel_stack, tuple(kernel_stacks)


_PLACE = struct.Struct("=QQQIIQQII")
"""Format of the fields of a PERF_RECORD_MMAP2 after pid and tid."""
_MAX_KEPT = 256
_TASK = struct.Struct("=IIII")
_TWO = struct.Struct("=II")
_LOST = struct.Struct("=QQ")


def parse_mmap2(body: bytes) -> Mapping | None:
    """Parse the perf record of a new executable mapping (MMAP2). Return None if it is too short."""
    place = body[_TWO.size :]
    if len(place) < _PLACE.size:
        return None
    return _known_mapping(place) if len(place) <= _MAX_KEPT else _mapping(place)


def _mapping(place: bytes) -> Mapping:
    """Parse the part of a perf MMAP2 record after pid and tid to a mapping."""
    start, length, offset, major, minor, inode, _, prot, flags = _PLACE.unpack_from(place)
    path = os.fsdecode(place[_PLACE.size :].split(b"\0", 1)[0])
    if path == "//anon":
        path = ""
    letters = "".join(letter if prot & bit else "-" for letter, bit in (("r", 1), ("w", 2), ("x", 4)))
    shared = "s" if flags & 1 else "p"
    dev = f"{major:02x}:{minor:02x}"
    return Mapping(start, min(start + length, 1 << 64), letters + shared, offset, dev, inode, path)


_known_mapping = lru_cache(1 << 13)(_mapping)
"""Parse an MMAP2 record like _mapping(), with a cache: a program may map the same thing thousands of times a second."""


def mapping_process(body: bytes) -> int | None:
    """Return the pid of a perf MMAP2 record, or None if the mapping is of no file or the record is too short."""
    if len(body) < _TWO.size + _PLACE.size or not _PLACE.unpack_from(body, _TWO.size)[5]:
        return None
    return int.from_bytes(body[:4], "little")


def parse_task(body: bytes) -> tuple[int, int, int, int] | None:
    """Return (pid, parent's pid, tid, parent's tid) of a perf FORK or EXIT record."""
    return _TASK.unpack_from(body) if len(body) >= _TASK.size else None


def parse_comm(body: bytes) -> tuple[int, int, str] | None:
    """Return (pid, tid, name) of a perf COMM record."""
    if len(body) < _TWO.size:
        return None
    pid, tid = _TWO.unpack_from(body)
    return pid, tid, body[_TWO.size :].split(b"\0", 1)[0].decode("utf-8", "replace")


def parse_lost(kind: int, body: bytes) -> int:
    """Return the number of lost records that a perf LOST or LOST_SAMPLES record reports."""
    if kind == LOST and len(body) >= _LOST.size:
        return int(_LOST.unpack_from(body)[1])
    return int.from_bytes(body[:8], "little") if kind == LOST_SAMPLES else 0
