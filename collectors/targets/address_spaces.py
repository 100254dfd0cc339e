"""The address spaces of one process over time: the modules that were mapped when a sample was taken.

/proc/PID/maps is read before all threads are sampled and again before a batch is yielded, within a budget of
time. The readings before and after a sample decide its address space. If they agree, the address space is
certain. Modules that only appeared or only disappeared are taken as present. If one module replaced another,
the addresses of the sample decide.

If the kernel answers queries for single mappings (linux/procmap_query.py), each stop checks whether the
sample's mapping is unchanged, and all mappings while modules appear and disappear. In that case nothing is
left to decide. Most other readings are replaced by such queries, too. For a Python process reading the text
takes 1 ms, which at 100 Hz was a third of the cost of a sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.linux.procfs import ProcDir, parse_program_arch
from pyprof.collectors.linux.procmap_query import Answer, MapQuery, make_guarded_reader, make_maps_reader
from pyprof.collectors.targets.mapping_changes import (
    MapChanges,
    MappedSize,
    Mappings,
    MapsText,
    Moves,
    StackMapping,
    UnsettledLane,
    UnsettledSamples,
    list_executables,
)
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace, Mapping, ProgramImage
from pyprof.model.arch import Arch

_BUDGET = 50  # after a read that took t there is none for 50 t: 2 % of the time
_RESTLESS_READS = 64  # number of reads before and after rounds of samples that follow a change
_RESTLESS_NS = 200_000  # maximum duration of a read for that
_ONCE_NS = 1_000_000  # maximum duration of one read after a change, for a new image during its first stop
_EVIDENCE_NS = 60_000  # maximum duration of a read while a thread is stopped
_SELDOM = 200  # after a read that took t there is none for 200 t if a cheaper check finds no change
_MAX_SELDOM_NS = 1_000_000_000
_EXACT_NS = 50_000_000  # time for which the size of mapped memory replaces queries for each mapping
_TEXT_NS = 500_000_000  # maximum age of the text if the kernel confirms that the executable mappings are unchanged


@dataclass(eq=False, kw_only=True)
class TargetImage(ProgramImage):
    """A program image: the program that a process runs from one exec to the next.

    Attributes:
        arch: Architecture of the program file.
        pac_known: True after set_pac_mask() was called.
    """

    arch: Arch
    pac_known: bool = False

    def set_pac_mask(self, mask: int) -> None:
        """Set the bits of code addresses that the kernel reports as pointer signatures; 0 if there are none."""
        self.pac_known = True
        if mask:
            self.arch = replace(self.arch, pac_mask=mask)


@dataclass(frozen=True, slots=True)
class MapsEvidence:
    """The facts about a process's mappings that are read while a thread is stopped for a sample. They decide to which
    version of the process's address space the sample belongs.

    Attributes:
        text: Contents of /proc/PID/maps, b"" if it was not read.
        proved: True if the mapping at the sample's pc is known to be the one in the current address space.
        changed: True if the mappings must be read as soon as the thread runs again.
    """

    text: bytes = b""
    proved: bool = False
    changed: bool = False


_NOBODY_LOOKED = MapsEvidence()
_PROVED = MapsEvidence(proved=True)


class SpaceTracker:
    """The current address space of one process, and the decision to which of its address spaces each sample belongs.

    Attributes:
        directory: The process's directory in /proc.
        current: The latest address space.
        image: The process's current program image.
        exec_count: Number of program images that an exec has replaced.
        stale: True if a sample had a pc or a stack outside of the known mappings.
        restless: True if modules have changed lately and reading the mappings is cheap. They are then read
            right before and after the threads are sampled.
    """

    def __init__(
        self,
        directory: ProcDir,
        next_id: Callable[[], int],
        ambiguous: Callable[[], None],
        query: MapQuery | None = None,
    ) -> None:
        """Read the mappings of a process.

        Args:
            directory: Its directory in /proc.
            next_id: Function that returns identifiers which are unique within the recording.
            ambiguous: Function to call for a sample that fits the mappings before and after a change equally.
            query: Queries for single mappings, None if the kernel has none.
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
        self.image = TargetImage(arch=parse_program_arch(directory))
        self._maps = MapsText(directory.maps())
        self.current = self._space(self._maps.mappings, 0)

    def close(self) -> None:
        self._changes.close()

    def _space(self, mappings: Mappings, generation: int) -> AddressSpace:
        pid = self.directory.pid
        read = make_guarded_reader(memory_reader(pid, self.image.is_alive), make_maps_reader(pid), mappings)
        return AddressSpace(self._next_id(), pid, generation, mappings, read, f"/proc/{pid}/root", image=self.image)

    def note_sample(self, lane: int, pc: int, sp: int, evidence: MapsEvidence = _NOBODY_LOOKED) -> None:
        """Note a sample that was taken in the current address space. Later readings of the mappings may move
        it to another one.

        If the evidence has the text of the mappings, nothing is left to decide: the caller has refreshed the
        address space with it.
        """
        if evidence.text:
            return
        self._unsettled.add_sample(UnsettledLane(lane, pc, sp, evidence.proved))
        code = self.current.mapping_at(pc)
        if code is None or not code.executable or self.find_region(sp) is None:
            self.stale = True

    def collect_evidence(self, pc: int) -> MapsEvidence:
        """Return facts about the process's mappings while a thread is stopped. This never raises.

        It is part of the thread's pause. So /proc/PID/maps is read only if that is fast, and only after a
        change, or while modules change and there is no cheaper check. For a new program image it is read
        unless that is slow. The mappings of the old image do not say where the sample is, and the next exec
        may come before another reading.
        """
        answer = self._changes.check_mapping(pc, self._maps, self._restless_reads > 0)
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
    def build_query(self) -> tuple[int, int, int]:
        """The query about mappings that the compiled sampling loop makes in stops: (descriptor or -1 for
        none, address of the expected answers, their number).
        """
        return self._changes.build_query(self._maps)

    @property
    def mapped_size(self) -> tuple[int, int]:
        """The pair by which the compiled sampling loop checks the size of the process's mapped memory:
        (descriptor of statm or -1, number of pages without data at the last reading of the mappings). While
        the number is unchanged, so are the mappings.
        """
        return self._changes.mapped_size

    def accept_answer(self) -> MapsEvidence:
        """Return the evidence for a sample of the compiled sampling loop, whose query in the stop has
        confirmed the mapping. It is empty if the loop makes no queries.
        """
        if self.build_query[0] < 0:
            return _NOBODY_LOOKED
        self._changes.count_expected_answer()
        return _PROVED

    def warm_up(self) -> None:
        """Make the system calls of collect_evidence() and ignore their results, so that they are fast in the
        following stop.
        """
        self._changes.warm_up(self._maps)

    def refresh_space(
        self, clock: Callable[[], int], force: bool = False, text: bytes = b"", last: bool = False
    ) -> Moves:
        """Read the mappings of the process again if the budget of time permits, and decide where earlier
        samples belong.

        Args:
            clock: Monotonic clock in nanoseconds.
            force: True to ignore the budget.
            text: Text of a MapsEvidence to use instead of reading.
            last: True for the last call before the samples are yielded.

        Returns:
            Samples that belong to another address space than the one that was current when they were taken.

        Raises:
            ProcessLookupError: The process has ended.
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
            seem_same = known and not last and before < self._exact_until_ns and self._changes.is_size_unchanged()
            if seem_same or (known and self._changes.is_unchanged(self._maps)):
                after = clock()
                read_ns = min(after - before, time.thread_time_ns() - cpu_before)
                self._not_before_ns = after + _BUDGET * read_ns
                if not seem_same:
                    self._exact_until_ns = after + _seldom(_EXACT_NS, read_ns)
                    self._unsettled.clear_samples()
                return []
        self._restless_reads = max(self._restless_reads - 1, 0)
        cpu_before = time.thread_time_ns()
        size = self._changes.measure_size()
        moves = self._compare(self.directory.maps(), size)
        after = clock()
        read_ns = min(after - before, time.thread_time_ns() - cpu_before)  # waiting for a processor does not count
        self._usual_ns = min(read_ns, self._usual_ns * 9 // 8 or read_ns)
        self._not_before_ns = after + _BUDGET * read_ns
        self._text_until_ns = after + _seldom(_TEXT_NS, read_ns)
        return moves

    def force_read(self) -> None:
        """Make the next check read the text of the mappings, because memory without code may have been mapped."""
        self._text_until_ns = 0

    def _compare(self, text: bytes, size: int = -1) -> Moves:
        moves: Moves = []
        taken_in, changed = self.current, False
        if text and (text != self._maps.text or self._changes.replaced):
            changed = self._maps.store_text(text, self._changes.replaced)
            if changed:
                self._restless_reads = _RESTLESS_READS
                moves = self._change(self._maps.mappings)
        self._changes.note_comparison(changed, size)
        if self.stale:
            self._unsettled.count_unexplained(moves, taken_in)
        self._unsettled.clear_samples()
        self.stale = False
        return moves

    @property
    def settled(self) -> bool:
        """True if the process's modules have not changed lately, and the pcs and stacks of the last samples
        are in known mappings.
        """
        return self._restless_reads == 0 and not self.stale

    @property
    def restless(self) -> bool:
        return self._restless_reads > 0 and self._usual_ns < _RESTLESS_NS

    @property
    def has_unsettled(self) -> bool:
        """True if a later reading of the mappings decides to which address space some samples belong."""
        return bool(self._unsettled)

    def forget_unsettled(self) -> None:
        self._unsettled.clear_samples()

    def _change(self, mappings: Mappings) -> Moves:
        old = self.current
        new_image = self._changes.replaced or _is_new_image(old.mappings, mappings)
        if new_image:
            self.image.alive = False
            self.image = TargetImage(arch=parse_program_arch(self.directory))
            self.exec_count += 1
            self._changes.restart_checks()
        self.current = self._space(mappings, old.generation + 1)
        joined = None if new_image else lambda both: self._space(both, old.generation)
        return self._unsettled.decide_moves(old, self.current, joined)

    def find_region(self, avma: int) -> StackMapping | None:
        """Return the writable memory around an address, as of the last reading of the mappings. Return None
        if there is none.
        """
        return self._maps.find_region(avma)


def _seldom(least_ns: int, took_ns: int) -> int:
    """Return the nanoseconds to wait before an operation is repeated, so that it takes only a small share of
    the time.

    Args:
        least_ns: Minimum of the result.
        took_ns: Duration of the operation.
    """
    return min(max(least_ns, _SELDOM * took_ns), _MAX_SELDOM_NS)


def _mapped_size(directory: ProcDir) -> MappedSize | None:
    try:
        return MappedSize(directory)
    except OSError:
        return None


def _is_new_image(old: Iterable[Mapping], new: Iterable[Mapping]) -> bool:
    """Return True if the mappings show an exec: the vDSO has a new address, and no old code remains."""
    vdso_old, vdso_new = ({m.start for m in maps if m.path == "[vdso]"} for maps in (old, new))
    if vdso_old and vdso_new:
        return vdso_old != vdso_new
    return not (list_executables(old) & list_executables(new))
