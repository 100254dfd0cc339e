"""The address spaces of one process over time: the modules that were mapped when a sample was taken.

/proc/PID/maps is read before the samples of a round and again before a batch is yielded, within a budget. The readings
before and after a sample settle its address space. If they agree, it is certain. Modules that only appeared or only
disappeared are taken as present. If one module replaced another, the addresses of the sample decide.

If the kernel answers queries for single mappings (linux/procmap_query.py), each stop checks whether the sample's
mapping is unchanged, and all mappings while modules appear and disappear. Then nothing is left to decide. Most readings
are such queries too: for a Python process the text takes 1 ms, which at 100 Hz was a third of the cost of a sample.
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
    """The program that a process runs from one exec to the next.

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
        text: All mappings, b"" if they were not read.
        proved: True if the mapping at the sample's pc is that of the current address space.
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
        exec_count: Number of images that were replaced.
        stale: True if an unknown pc or stack was seen.
        restless: True if modules have changed lately and reading them is cheap: they are read right before and after
            each round.
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
            next_id: Returns identifiers that are unique within the recording.
            ambiguous: Called for a sample that fits both states equally.
            query: Queries for single mappings, if there are any.
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
        """Note a sample that was taken in the current address space.

        The assignment is certain if the evidence has a text, with which the caller has refreshed the space. Otherwise
        later readings decide.
        """
        if evidence.text:
            return
        self._unsettled.add_sample(UnsettledLane(lane, pc, sp, evidence.proved))
        code = self.current.mapping_at(pc)
        if code is None or not code.executable or self.find_region(sp) is None:
            self.stale = True

    def collect_evidence(self, pc: int) -> MapsEvidence:
        """Return information about the process's mappings while a thread is stopped. This never raises.

        It is part of the pause. So the text is read only if that is fast, and only after a change, or while modules
        change and there is no cheaper check. For a new image it is read unless that is slow. Nothing known of the old
        image says where the sample is, and the next exec may come before another reading.
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
        """The query about mappings that the compiled sampling loop makes in stops (see MapChanges.build_query()), for a
        process whose modules have not changed lately.
        """
        return self._changes.build_query(self._maps)

    @property
    def mapped_size(self) -> tuple[int, int]:
        """The pair by which the compiled sampling loop checks the size of the process's mapped memory: descriptor of
        statm or -1, and the number of pages without data at the last reading of the mappings. While the number is
        unchanged, so are the mappings.
        """
        return self._changes.mapped_size

    def accept_answer(self) -> MapsEvidence:
        """Return the evidence from a query by the compiled sampling loop in a stop: the mapping is that of the current
        address space.
        """
        if self.build_query[0] < 0:
            return _NOBODY_LOOKED
        self._changes.count_expected_answer()
        return _PROVED

    def warm_up(self) -> None:
        """Make the calls of collect_evidence() and ignore the result, so that they are fast in a stop."""
        self._changes.warm_up(self._maps)

    def refresh_space(
        self, clock: Callable[[], int], force: bool = False, text: bytes = b"", last: bool = False
    ) -> Moves:
        """Read the mappings of the process again if the time budget allows it.

        Args:
            clock: Returns the time in ns.
            force: Ignore the budget.
            text: Text of a MapsEvidence to use instead of reading.
            last: True before the samples are yielded, so that each mapping is checked.

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
        """Read the text of the mappings at the next check, because data may have been mapped."""
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
        """True if the process's modules have not changed lately and everything in the last samples is known."""
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
        """Return the writable memory of the process around an address, as of the last reading of its mappings."""
        return self._maps.find_region(avma)


def _seldom(least_ns: int, took_ns: int) -> int:
    """Return how many nanoseconds to wait before an operation is repeated, so that it takes only a small share of the
    time.

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
