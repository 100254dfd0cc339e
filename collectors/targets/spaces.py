"""The address spaces of one process over time: which modules were mapped when a sample was taken.

/proc/PID/maps is read before the samples of a tick and again before a batch leaves, within a budget. A sample is
settled by the reads on both sides of it: where they agree it is certain; modules that only came or only went are
taken as present; where one module took another's place the addresses of the sample decide. Where the kernel answers
questions about single mappings (linux/map_query.py) each sample asks, at its stop, whether its own mapping is as it
was, and all of them while modules come and go: then nothing is left to decide. There most reads are such questions too:
of a Python process the text takes 1 ms, which at 100 Hz was a third of all that a sample costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.linux.map_query import Answer, MapQuery
from pyprof.collectors.linux.mapped_memory import guarded, maps_of
from pyprof.collectors.linux.procfs import ProcDir, program_arch
from pyprof.collectors.targets.map_changes import MapChanges, MappedSize
from pyprof.collectors.targets.maps_text import MapsText, StackMapping
from pyprof.collectors.targets.unsettled import Mappings, Moves, UnsettledLane, UnsettledSamples, executables
from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace, Mapping, ProgramImage
from pyprof.records import dataclass, replace

_BUDGET = 50  # a read that took t is followed by none for 50 t: 2 % of the time
_RESTLESS_READS = 64  # after a change, so many reads are made on both sides of a round of samples
_RESTLESS_NS = 200_000  # but not where one takes longer than this
_ONCE_NS = 1_000_000  # so long a read is made once a change: of a new image at its first stop, else after the stop
_EVIDENCE_NS = 60_000  # and so long a read is made while a thread stands still
_SELDOM = 200  # what took t is not done for 200 t where something cheaper says that nothing has changed
_MOST_SELDOM_NS = 1_000_000_000
_EXACT_NS = 50_000_000  # so long not each mapping is asked about while as much is mapped as before
_TEXT_NS = 500_000_000  # so old may the text be where the kernel answers that the executable mappings are the same


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
class MapsEvidence:
    """What is known of the mappings at the moment of a sample. text: all of them, b"" if nobody looked; proved: the
    mapping at its pc is as in the current space; changed: others are to be read as soon as the thread runs again.
    """

    text: bytes = b""
    proved: bool = False
    changed: bool = False


_NOBODY_LOOKED = MapsEvidence()
_PROVED = MapsEvidence(proved=True)


class SpaceTracker:
    """current: the space as it was last seen; image: its program. exec_count: images that were replaced. stale: a pc or
    a stack was seen that is not known. restless: modules have changed lately, and reading them is cheap: read right
    before and right after each round.
    """

    def __init__(
        self,
        directory: ProcDir,
        next_id: Callable[[], int],
        ambiguous: Callable[[], None],
        query: MapQuery | None = None,
    ) -> None:
        """next_id: gives ids that are unique within the recording. ambiguous: called for a sample that fits neither
        side better than the other. query: asks the kernel about single mappings.
        """
        self.directory = directory
        self.exec_count = 0
        self.stale = False
        self._next_id = next_id
        self._unsettled = UnsettledSamples(ambiguous)
        self._changes = MapChanges(query, _mapped_size(directory) if query is not None else None)
        self._not_before_ns = self._text_until_ns = self._exact_until_ns = 0
        self._restless_reads = 0
        self._usual_ns = 0
        self.image = TargetImage(arch=program_arch(directory))
        self._maps = MapsText(directory.maps())
        self.current = self._space(self._maps.mappings, 0)

    def close(self) -> None:
        self._changes.close()

    def _space(self, mappings: Mappings, generation: int) -> AddressSpace:
        pid = self.directory.pid
        read = guarded(memory_reader(pid, self.image.is_alive), maps_of(pid), mappings)
        return AddressSpace(self._next_id(), pid, generation, mappings, read, f"/proc/{pid}/root", image=self.image)

    def took(self, lane: int, pc: int, sp: int, evidence: MapsEvidence = _NOBODY_LOOKED) -> None:
        """A lane was sampled in the current space, as far as is known now; for certain if the evidence has a text (the
        caller has refreshed with it).
        """
        if evidence.text:
            return
        self._unsettled.add(UnsettledLane(lane, pc, sp, evidence.proved))
        code = self.current.mapping_at(pc)
        if code is None or not code.executable or self.region_at(sp) is None:
            self.stale = True

    def evidence(self, pc: int) -> MapsEvidence:
        """The mappings as they are while the thread that is read stands still. Never raises.

        It is part of the pause: the text is read only where something has changed, or modules change and nothing
        cheaper says so, and only where reading it is quick. Of a new image it is read where that is not slow: nothing
        that was known of the old one says where the sample is, and the next exec may come before another look.
        """
        answer = self._changes.ask(pc, self._maps, self._restless_reads > 0)
        if answer is Answer.SAME:
            return MapsEvidence(self._maps.text, proved=True)
        if answer is Answer.NEAR:
            return _PROVED
        if answer is Answer.UNKNOWN:
            if not self.restless or self._usual_ns >= _EVIDENCE_NS:
                return _NOBODY_LOOKED
        elif self._usual_ns >= (_ONCE_NS if answer is Answer.REPLACED else _RESTLESS_NS):
            self.stale = True
            return MapsEvidence(changed=self._usual_ns < _ONCE_NS)
        try:
            return MapsEvidence(self.directory.maps())
        except OSError:
            return _NOBODY_LOOKED

    @property
    def question(self) -> tuple[int, int, int]:
        """See MapChanges. For a space that is not restless."""
        return self._changes.question(self._maps)

    @property
    def mapped_size(self) -> tuple[int, int]:
        """A descriptor of statm, -1 if it is not asked, and the pages that are no data when all mappings were as in the
        current space.
        """
        return self._changes.mapped_size

    def answered(self) -> MapsEvidence:
        """The question was asked at a stop, and the mapping is as in the current space."""
        if self.question[0] < 0:
            return _NOBODY_LOOKED
        self._changes.answered()
        return _PROVED

    def warm_up(self) -> None:
        """Warm-up call of evidence(); the result is discarded."""
        self._changes.warm_up(self._maps)

    def refresh(self, clock: Callable[[], int], force: bool = False, text: bytes = b"", last: bool = False) -> Moves:
        """Read maps if the budget allows. Lanes whose space is not the one that was current when they were taken.

        text: of a MapsEvidence, instead of reading. last: for these lanes, so each mapping is asked about. Raises
        ProcessLookupError.
        """
        if text:
            return self._compare(text)
        before = clock()
        if not force and not self.restless:
            last = last and bool(self._unsettled)
            if before < self._not_before_ns and not last:
                return []
            cpu_before = time.thread_time_ns()
            known = before < self._text_until_ns and not self.stale
            seem_same = known and not last and before < self._exact_until_ns and self._changes.seem_same()
            if seem_same or (known and self._changes.is_same(self._maps)):
                after = clock()
                self._not_before_ns = after + _BUDGET * (after - before)
                if not seem_same:
                    self._exact_until_ns = after + _seldom(_EXACT_NS, time.thread_time_ns() - cpu_before)
                    self._unsettled.clear()
                return []
        self._restless_reads = max(self._restless_reads - 1, 0)
        cpu_before = time.thread_time_ns()
        size = self._changes.measured()
        moves = self._compare(self.directory.maps(), size)
        after = clock()
        read_ns = min(after - before, time.thread_time_ns() - cpu_before)  # waiting for a CPU is no work of ours
        self._usual_ns = min(read_ns, self._usual_ns * 9 // 8 or read_ns)
        self._not_before_ns = after + _BUDGET * read_ns
        self._text_until_ns = after + _seldom(_TEXT_NS, read_ns)
        return moves

    def distrust(self) -> None:
        """Something may have been mapped that is no code: the next look reads the text."""
        self._text_until_ns = 0

    def _compare(self, text: bytes, size: int = -1) -> Moves:
        moves: Moves = []
        taken_in, changed = self.current, False
        if text and (text != self._maps.text or self._changes.replaced):
            changed = self._maps.take(text, self._changes.replaced)
            if changed:
                self._restless_reads = _RESTLESS_READS
                moves = self._change(self._maps.mappings)
        self._changes.compared(changed, size)
        if self.stale:
            self._unsettled.count_unexplained(moves, taken_in)
        self._unsettled.clear()
        self.stale = False
        return moves

    @property
    def settled(self) -> bool:
        """Have modules not changed lately, and is nothing of the last samples unknown?"""
        return self._restless_reads == 0 and not self.stale

    @property
    def restless(self) -> bool:
        return self._restless_reads > 0 and self._usual_ns < _RESTLESS_NS

    def forget_unsettled(self) -> None:
        self._unsettled.clear()

    def _change(self, mappings: Mappings) -> Moves:
        old = self.current
        new_image = self._changes.replaced or _is_new_image(old.mappings, mappings)
        if new_image:
            self.image.alive = False
            self.image = TargetImage(arch=program_arch(self.directory))
            self.exec_count += 1
            self._changes.renew()
        self.current = self._space(mappings, old.generation + 1)
        joined = None if new_image else lambda both: self._space(both, old.generation)
        return self._unsettled.settle(old, self.current, joined)

    def region_at(self, avma: int) -> StackMapping | None:
        """The writable memory around an address, as of the last read."""
        return self._maps.region_at(avma)


def _seldom(least_ns: int, took_ns: int) -> int:
    """How long to do without what took so long."""
    return min(max(least_ns, _SELDOM * took_ns), _MOST_SELDOM_NS)


def _mapped_size(directory: ProcDir) -> MappedSize | None:
    try:
        return MappedSize(directory)
    except OSError:
        return None


def _is_new_image(old: Iterable[Mapping], new: Iterable[Mapping]) -> bool:
    """exec gives a new vDSO address, and none of the old code stays."""
    vdso_old, vdso_new = ({m.start for m in maps if m.path == "[vdso]"} for maps in (old, new))
    if vdso_old and vdso_new:
        return vdso_old != vdso_new
    return not (executables(old) & executables(new))
