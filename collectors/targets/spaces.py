"""The address spaces of one process over time: which modules were mapped when a sample was taken.

/proc/PID/maps is read before the samples of a tick and again before a batch leaves, within a budget. A sample is
settled by the reads on both sides of it: where they agree it is certain; modules that only came or only went are
taken as present; where one module took another's place the addresses of the sample decide. Where the kernel answers
questions about single mappings (linux/map_query.py) each sample asks, at its stop, whether its own mapping is as it
was, and all of them while modules come and go: then nothing is left to decide. There most reads are such questions too:
of a Python process the text takes 1 ms, which at 100 Hz was a third of all that a sample costs.
"""

from __future__ import annotations

import itertools
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.linux.map_query import Answer, MapQuery, Vma, executable_vmas
from pyprof.collectors.linux.mapped_memory import guarded
from pyprof.collectors.linux.procfs import ProcDir, parse_maps, program_arch
from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace, Mapping, ProgramImage

_EXECUTABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [r-][w-]x[sp] .*$", re.MULTILINE)
_WRITABLE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw[x-][sp] [0-9a-f]+ 00:00 0(?: |$)", re.MULTILINE)
_BUDGET = 50  # a read that took t is followed by none for 50 t: 2 % of the time
_RESTLESS_READS = 64  # after a change, so many reads are made on both sides of a round of samples
_RESTLESS_NS = 200_000  # but not where one takes longer than this
_ONCE_NS = 1_000_000  # so long a read is made once a change: of a new image at its first stop, else after the stop
_WITNESS_NS = 60_000  # and so long a read is made while a thread stands still
_MOST_QUESTIONS = 64
_MOST_IN_TIME = 256  # questions, where no thread stands still
_TEXT_NS = 500_000_000  # so old may the text be where the kernel answers that the executable mappings are the same
_FALSE_ALARMS = 8  # after so many the kernel's answers are not to be compared with its text


@dataclass(eq=False, kw_only=True)
class TargetImage(ProgramImage):
    """arch: of its program file. pac_known: set_pac_mask was called."""

    arch: Arch
    pac_known: bool = False

    def set_pac_mask(self, mask: int) -> None:
        """What the kernel says of this process: which bits of code addresses are signatures; 0 if it signs none."""
        self.pac_known = True
        if mask:
            self.arch = replace(self.arch, pac_mask=mask)


@dataclass(frozen=True, slots=True)
class StackMapping:
    """A stretch of readable, writable memory without a gap: where a stack lives."""

    start: int
    end: int

    def __contains__(self, avma: int) -> bool:
        return self.start <= avma < self.end


@dataclass(slots=True)
class Unsettled:
    """A lane that waits for the next read of maps. proved: the mapping at pc was as in the current space."""

    lane: int
    pc: int
    sp: int
    proved: bool


@dataclass(frozen=True, slots=True)
class MapsEvidence:
    """What is known of the mappings at the moment of a sample. text: all of them, b"" if nobody looked; proved: the
    mapping at its pc is as in the current space; changed: others are to be read as soon as the thread runs again.
    """

    text: bytes = b""
    proved: bool = False
    changed: bool = False


_NOBODY_LOOKED = MapsEvidence()


@dataclass(eq=False)
class SpaceTracker:
    """next_id: gives ids that are unique within the recording. ambiguous: called for a sample that fits neither side
    better than the other. exec_count: images that were replaced. stale: a pc or a stack was seen that is not known.
    restless: modules have changed lately, and reading them is cheap: read right before and right after each round.
    query: asks the kernel about single mappings.
    """

    directory: ProcDir
    next_id: Callable[[], int]
    ambiguous: Callable[[], None]
    query: MapQuery | None = None
    current: AddressSpace = field(init=False)
    image: TargetImage = field(init=False)
    exec_count: int = 0
    stale: bool = False
    _text: bytes = b""
    _executable: tuple[bytes, ...] = ()
    _vmas: tuple[Vma, ...] = ()
    _known_vmas: frozenset[Vma] = frozenset()
    _replaced: bool = False
    _doubted: bool = False
    _false_alarms: int = 0
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _not_before_ns: int = 0
    _text_until_ns: int = 0
    _restless_reads: int = 0
    _read_ns: int = 0
    _usual_ns: int = 0
    _unsettled: list[Unsettled] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image = TargetImage(arch=program_arch(self.directory))
        self._text = self.directory.maps()
        self._executable = tuple(_EXECUTABLE.findall(self._text))
        self._starts, self._ends = _writable_regions(self._text)
        mappings = parse_maps(self._text)
        self._expect(mappings)
        self.current = self._space(mappings, 0)

    def close(self) -> None:
        if self.query:
            self.query.close()

    def _expect(self, mappings: tuple[Mapping, ...]) -> None:
        self._vmas = executable_vmas(mappings)
        self._known_vmas = frozenset(self._vmas)

    def _space(self, mappings: tuple[Mapping, ...], generation: int) -> AddressSpace:
        pid = self.directory.pid
        read = guarded(memory_reader(pid, self.image.is_alive), pid, mappings)
        return AddressSpace(self.next_id(), pid, generation, mappings, read, f"/proc/{pid}/root", image=self.image)

    def took(self, lane: int, pc: int, sp: int, evidence: MapsEvidence = _NOBODY_LOOKED) -> None:
        """A lane was sampled in the current space, as far as is known now; for certain if the evidence has a text (the
        caller has refreshed with it).
        """
        if evidence.text:
            return
        self._unsettled.append(Unsettled(lane, pc, sp, evidence.proved))
        code = self.current.mapping_at(pc)
        if code is None or not code.executable or self.region_at(sp) is None:
            self.stale = True

    def evidence(self, pc: int) -> MapsEvidence:
        """The mappings as they are while the thread that is read stands still. Never raises.

        It is part of the pause: the text is read only where something has changed, or modules change and nothing
        cheaper tells, and only where reading it is quick. Of a new image it is read where that is not slow: nothing
        that was known of the old one says where the sample is, and the next exec may come before another look.
        """
        answer = self._ask(pc)
        if answer is Answer.SAME:
            return MapsEvidence(self._text, proved=True)
        if answer is Answer.NEAR:
            return MapsEvidence(proved=True)
        if answer is Answer.UNKNOWN:
            if not self.restless or self._usual_ns >= _WITNESS_NS:
                return _NOBODY_LOOKED
        elif self._usual_ns >= (_ONCE_NS if answer is Answer.REPLACED else _RESTLESS_NS):
            self.stale = True
            return MapsEvidence(changed=self._usual_ns < _ONCE_NS)
        try:
            return MapsEvidence(self.directory.maps())
        except OSError:
            return _NOBODY_LOOKED

    def warm_up(self) -> None:
        """Warm-up call of evidence(); the result is discarded."""
        if self.query is not None and self._vmas:
            self.query.near(self._vmas[0][0], self._known_vmas)

    def _ask(self, pc: int) -> Answer:
        if self.query is None:
            return Answer.UNKNOWN
        if self._restless_reads and len(self._vmas) <= _MOST_QUESTIONS:
            answer = self.query.every(self._vmas)
        else:
            answer = self.query.near(pc, self._known_vmas)
        if answer is Answer.REPLACED:
            self._replaced = True
            self.query.renew()
        self._doubted = answer is Answer.CHANGED
        return answer

    def refresh(
        self, clock: Callable[[], int], force: bool = False, text: bytes = b""
    ) -> list[tuple[int, AddressSpace]]:
        """Read maps if the budget allows. Lanes whose space is not the one that was current when they were taken.

        text: of a MapsEvidence, instead of reading. Raises ProcessLookupError.
        """
        if text:
            return self._compare(text)
        before = clock()
        if not force and not self.restless:
            if before < self._not_before_ns:
                return []
            if before < self._text_until_ns and self._is_same():
                self._unsettled.clear()
                after = clock()
                self._not_before_ns = after + _BUDGET * (after - before)
                return []
        self._restless_reads = max(self._restless_reads - 1, 0)
        cpu_before = time.thread_time_ns()
        changes = self._compare(self.directory.maps())
        after = clock()
        self._read_ns = min(after - before, time.thread_time_ns() - cpu_before)  # waiting for a CPU is no work of ours
        self._usual_ns = min(self._read_ns, self._usual_ns * 9 // 8 or self._read_ns)
        self._not_before_ns = after + _BUDGET * self._read_ns
        self._text_until_ns = after + _TEXT_NS
        return changes

    def distrust(self) -> None:
        """Something may have been mapped that is no code: the next look reads the text."""
        self._text_until_ns = 0

    def _is_same(self) -> bool:
        """Does the kernel say that the executable mappings are as they were?"""
        if self.query is None or self.stale or self._doubted or len(self._vmas) > _MOST_IN_TIME:
            return False
        answer = self.query.every(self._vmas)
        if answer is Answer.REPLACED:
            self._replaced = True
            self.query.renew()
        return answer is Answer.SAME

    def _compare(self, text: bytes) -> list[tuple[int, AddressSpace]]:
        changes: list[tuple[int, AddressSpace]] = []
        taken_in = self.current
        if text and (text != self._text or self._replaced):
            self._text = text
            self._starts, self._ends = _writable_regions(text)
            executable = tuple(_EXECUTABLE.findall(text))
            if executable != self._executable or self._replaced:
                self._executable = executable
                self._restless_reads = _RESTLESS_READS
                self._doubted = False
                mappings = parse_maps(text)
                self._expect(mappings)
                changes = self._change(mappings)
        if self._doubted and self.query:
            self._doubted = False
            self._false_alarms += 1
            if self._false_alarms > _FALSE_ALARMS:
                self.query.close()
        if self.stale:
            self._count_unexplained(dict(changes), taken_in)
        self._unsettled.clear()
        self.stale = False
        return changes

    @property
    def restless(self) -> bool:
        return self._restless_reads > 0 and self._usual_ns < _RESTLESS_NS

    def forget_unsettled(self) -> None:
        self._unsettled.clear()

    def _change(self, mappings: tuple[Mapping, ...]) -> list[tuple[int, AddressSpace]]:
        old = self.current
        new_image = self._replaced or _is_new_image(old.mappings, mappings)
        self._replaced = False
        if new_image:
            self.image.alive = False
            self.image = TargetImage(arch=program_arch(self.directory))
            self.exec_count += 1
            if self.query:
                self.query.renew()
        new = self.current = self._space(mappings, old.generation + 1)
        if not self._unsettled:
            return []
        if not new_image:
            was, now = _executables(old.mappings), _executables(mappings)
            added, removed = now - was, was - now
            if not added:
                return []
            if not removed:
                return [(u.lane, new) for u in self._unsettled]
            if not _overlap(added, removed):
                union = self._space(_union(old.mappings, mappings), old.generation)
                return [(u.lane, union) for u in self._unsettled]
        changes = []
        for unsettled in self._unsettled:
            if unsettled.proved and (new_image or old.mapping_at(unsettled.pc) != new.mapping_at(unsettled.pc)):
                continue
            score_old, score_new = (_score(space, unsettled.pc, unsettled.sp) for space in (old, new))
            if score_old == score_new > 1:
                self.ambiguous()
            if score_new >= score_old:
                changes.append((unsettled.lane, new))
        return changes

    def _count_unexplained(self, moved: dict[int, AddressSpace], taken_in: AddressSpace) -> None:
        for unsettled in self._unsettled:
            code = moved.get(unsettled.lane, taken_in).mapping_at(unsettled.pc)
            if code is None or not code.executable:
                self.ambiguous()

    def region_at(self, avma: int) -> StackMapping | None:
        """The writable memory around an address, as of the last read."""
        at = bisect_right(self._starts, avma) - 1
        return StackMapping(self._starts[at], self._ends[at]) if at >= 0 and avma < self._ends[at] else None


_Key = tuple[int, int, int, str, int, str]


def _executables(mappings: Iterable[Mapping]) -> set[_Key]:
    return {
        (m.start, m.end, m.offset, m.dev, m.inode, m.path) for m in mappings if m.executable and m.path != "[vsyscall]"
    }


def _is_new_image(old: Iterable[Mapping], new: Iterable[Mapping]) -> bool:
    """exec gives a new vDSO address, and none of the old code stays."""
    vdso_old, vdso_new = ({m.start for m in maps if m.path == "[vdso]"} for maps in (old, new))
    if vdso_old and vdso_new:
        return vdso_old != vdso_new
    return not (_executables(old) & _executables(new))


def _overlap(some: set[_Key], others: set[_Key]) -> bool:
    spans = sorted([(key[0], key[1]) for key in some | others])
    return any(a[1] > b[0] for a, b in itertools.pairwise(spans))


def _union(old: tuple[Mapping, ...], new: tuple[Mapping, ...]) -> tuple[Mapping, ...]:
    """Both images where they do not contradict each other; new wins."""
    starts, ends = [m.start for m in new], [m.end for m in new]
    kept = []
    for mapping in old:
        at = bisect_right(starts, mapping.start) - 1
        free_below = at < 0 or ends[at] <= mapping.start
        free_above = at + 1 >= len(starts) or starts[at + 1] >= mapping.end
        if free_below and free_above:
            kept.append(mapping)
    return tuple(sorted((*new, *kept), key=lambda m: m.start))


def _score(space: AddressSpace, pc: int, sp: int) -> int:
    code, stack = space.mapping_at(pc), space.mapping_at(sp)
    return (2 if code and code.executable else 0) + (1 if stack and "w" in stack.perms else 0)


def _writable_regions(text: bytes) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    for low, high in _WRITABLE.findall(text):
        start, end = int(low, 16), int(high, 16)
        if ends and ends[-1] == start:
            ends[-1] = end
        elif not ends or ends[-1] < start:
            starts.append(start)
            ends.append(end)
    return starts, ends
