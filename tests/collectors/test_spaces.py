"""Tests of the modules of a sample if mappings change around it."""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.collectors.linux.procmap_query import Answer, MapQuery, Vma, pack_executable_vmas
from pyprof.collectors.ptrace.sampled_thread import StackShape
from pyprof.collectors.targets.address_spaces import MapsEvidence, SpaceTracker
from pyprof.collectors.targets.mapping_changes import MapChanges, MappedSize, StackMapping
from pyprof.model.sample_batch import SampleKind
from tests.collectors.conftest import Start
from tests.collectors.stopping import stopping

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAM = "1000-2000 r-xp 00000000 08:01 10 /bin/program\n"
ONE = "5000-6000 r-xp 00000000 08:01 11 /lib/one.so\n"
TWO = "7000-8000 r-xp 00000000 08:01 12 /lib/two.so\n"
THREE_OVER_ONE = "5000-6800 r-xp 00000000 08:01 13 /lib/three.so\n"
HEAP = "3000-4000 rw-p 00000000 00:00 0 [heap]\n"
STACK = "e000-f000 rw-p 00000000 00:00 0 [stack]\n"
VDSO = "f800-f900 r-xp 00000000 00:00 0 [vdso]\n"
OTHER = "a000-b000 r-xp 00000000 08:01 20 /bin/other\n"
OTHER_STACK = "c000-d000 rw-p 00000000 00:00 0 [stack]\n"
OTHER_VDSO = "fa00-fb00 r-xp 00000000 00:00 0 [vdso]\n"


class Directory:
    """A simulated /proc/PID with mappings that the test chooses."""

    pid = 4242

    def __init__(self, *lines: str) -> None:
        self.say(*lines)

    def say(self, *lines: str) -> None:
        self.text = "".join(lines).encode()

    def maps(self) -> bytes:
        return self.text

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        raise ProcessLookupError(name)


class Scene:
    def __init__(self, *lines: str) -> None:
        self.directory = Directory(*lines)
        self.ambiguous = 0
        self.now = 0
        self.tracker = SpaceTracker(self.directory, itertools.count(1).__next__, self.count)  # type: ignore[arg-type]

    def count(self) -> None:
        self.ambiguous += 1

    def clock(self) -> int:
        self.now += 1000
        return self.now

    def change(self, *lines: str) -> dict[int, str]:
        """Change the mappings and return the modules of each sample that moved to another address space."""
        self.directory.say(*lines)
        moved = self.tracker.refresh_space(self.clock, force=True)
        return {lane: " ".join(module.name for module in space.modules) for lane, space in moved}


def test_a_module_that_came_is_taken_as_present() -> None:
    scene = Scene(PROGRAM, STACK)
    scene.tracker.note_sample(0, 0x1800, 0xE100)
    assert scene.change(PROGRAM, ONE, STACK) == {0: "program one.so"}
    assert scene.tracker.current.generation == 1


def test_a_module_that_went_is_taken_as_present() -> None:
    scene = Scene(PROGRAM, ONE, STACK)
    scene.tracker.note_sample(0, 0x1800, 0xE100)
    assert scene.change(PROGRAM, STACK) == {}


def test_one_that_came_and_one_that_went_are_both_present() -> None:
    scene = Scene(PROGRAM, ONE, STACK)
    scene.tracker.note_sample(0, 0x5800, 0xE100)
    assert scene.change(PROGRAM, TWO, STACK) == {0: "program one.so two.so"}
    assert [m.name for m in scene.tracker.current.modules] == ["program", "two.so"]
    assert scene.ambiguous == 0


def test_where_one_took_the_place_of_another_the_addresses_decide_or_it_is_counted() -> None:
    scene = Scene(PROGRAM, ONE, STACK)
    scene.tracker.note_sample(0, 0x6700, 0xE100)
    scene.tracker.note_sample(1, 0x5800, 0xE100)
    assert scene.change(PROGRAM, THREE_OVER_ONE, STACK) == {0: "program three.so", 1: "program three.so"}
    assert scene.ambiguous == 1


def test_after_an_exec_each_sample_belongs_to_the_image_that_has_its_addresses() -> None:
    scene = Scene(PROGRAM, STACK, VDSO)
    old = scene.tracker.current
    scene.tracker.note_sample(0, 0x1800, 0xE100)
    scene.tracker.note_sample(1, 0xA800, 0xC100)
    assert scene.change(OTHER, OTHER_STACK, OTHER_VDSO) == {1: "other [vdso]"}
    assert scene.tracker.exec_count == 1
    assert old.read(0x1000, 4) == b""
    assert old.ended
    assert not scene.tracker.current.ended
    assert scene.tracker.current.process is not old.process


def test_memory_that_is_no_code_makes_no_new_generation() -> None:
    scene = Scene(PROGRAM, STACK)
    space = scene.tracker.current
    assert scene.change(PROGRAM, HEAP, STACK) == {}
    assert scene.tracker.current is space
    assert scene.tracker.find_region(0x3800) == StackMapping(0x3000, 0x4000)


def test_code_that_no_module_explains_asks_for_another_look_and_is_counted() -> None:
    scene = Scene(PROGRAM, STACK)
    scene.tracker.note_sample(0, 0x1800, 0xE100)
    assert not scene.tracker.stale
    scene.tracker.note_sample(1, 0x9999, 0xE100)
    assert scene.tracker.stale
    scene.change(PROGRAM, STACK)
    assert (scene.ambiguous, scene.tracker.stale) == (1, False)


def test_reading_costs_at_most_its_share_of_the_time() -> None:
    scene = Scene(PROGRAM)
    scene.tracker.refresh_space(iter([0, 1000]).__next__)
    scene.directory.say(PROGRAM, ONE)
    assert scene.tracker.refresh_space(lambda: 50_000) == []
    assert len(scene.tracker.current.modules) == 1
    scene.tracker.refresh_space(lambda: 52_000)
    assert len(scene.tracker.current.modules) == 2


@pytest.mark.parametrize("sp", [0xE100, 0xEFF8])
def test_first_copy_reaches_the_mappings_end_and_later_ones_the_stacks_end(sp: int) -> None:
    stack = StackMapping(0xE000, 0x1F000)
    shape = StackShape(1 << 20)
    base, size = shape.span(sp, lambda at: stack if at in stack else None)
    assert base <= sp - 128
    assert base + size == stack.end
    shape.learn(base, 0x18000, 0, None)
    base, size = shape.span(sp, lambda at: stack if at in stack else None)
    assert 0x18000 <= base + size <= 0x18000 + 4096
    shape.learn(base, 0x18000, 0x18800, stack)
    base, size = shape.span(sp, lambda at: stack if at in stack else None)
    assert base + size > 0x18808


def test_a_main_stack_that_grew_since_maps_was_read_is_still_home() -> None:
    stack = StackMapping(0x7F00_0000, 0x7F02_0000)
    shape = StackShape(1 << 20)

    def region_at(avma: int) -> StackMapping | None:
        return stack if avma in stack else None

    shape.span(0x7F01_0000, region_at)
    base, size = shape.span(0x7EFF_0000, region_at)
    assert base + size == stack.end
    assert size > 0x3_0000


class Kernel:
    """A simulated kernel that answers PROCMAP_QUERY for the mappings of a Directory."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.replaced = False
        self.wrong = False
        self.asked_for_all = 0

    def _vmas(self) -> tuple[Vma, ...]:
        return pack_executable_vmas(parse_maps(self.directory.maps()))

    def check_mapping_at(self, pc: int, expected: Collection[Vma]) -> Answer:
        at = next((vma for vma in self._vmas() if vma[0] <= pc < vma[1]), None)
        return self._answer(Answer.NEAR if at in expected else Answer.CHANGED)

    def check_all_mappings(self, expected: Sequence[Vma]) -> Answer:
        self.asked_for_all += 1
        return self._answer(Answer.SAME if self._vmas() == tuple(expected) else Answer.CHANGED)

    def _answer(self, answer: Answer) -> Answer:
        return Answer.CHANGED if self.wrong else Answer.REPLACED if self.replaced else answer

    def reopen_maps(self) -> None:
        self.replaced = False

    def close(self) -> None:
        self.wrong = False


class Asked(Scene):
    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.kernel = Kernel(self.directory)
        self.tracker._changes = MapChanges(cast(MapQuery, self.kernel))

    def sample(self, lane: int, pc: int, sp: int) -> list[str]:
        """Return the names of the modules of the address space that a sample gets at once."""
        evidence = self.tracker.collect_evidence(pc)
        if evidence.text:
            self.tracker.refresh_space(iter([0] * 9).__next__, text=evidence.text)  # the clock has not moved since
        self.tracker.note_sample(lane, pc, sp, evidence)
        return [module.name for module in self.tracker.current.modules]


def test_a_sample_in_code_that_changed_is_settled_at_its_stop() -> None:
    scene = Asked(PROGRAM, ONE, STACK)
    assert scene.sample(0, 0x5800, 0xE100) == ["program", "one.so"]
    scene.directory.say(PROGRAM, THREE_OVER_ONE, STACK)
    assert scene.sample(1, 0x5800, 0xE100) == ["program", "three.so"]
    assert scene.change(PROGRAM, TWO, STACK) == {}
    assert scene.ambiguous == 0


def test_a_sample_whose_own_module_stood_keeps_it_when_another_takes_the_place_later() -> None:
    scene = Asked(PROGRAM, ONE, STACK)
    scene.sample(0, 0x5800, 0xE100)
    assert scene.change(PROGRAM, THREE_OVER_ONE, STACK) == {}
    assert scene.ambiguous == 0


def test_while_modules_come_and_go_all_of_them_are_asked_for() -> None:
    scene = Asked(PROGRAM, ONE, STACK)
    scene.change(PROGRAM, TWO, STACK)
    scene.directory.say(PROGRAM, ONE, STACK)
    assert scene.sample(0, 0x1800, 0xE100) == ["program", "one.so"]
    assert scene.change(PROGRAM, TWO, STACK) == {}


def test_an_exec_that_leaves_every_address_as_it_was_is_seen() -> None:
    scene = Asked(PROGRAM, STACK, VDSO)
    old = scene.tracker.current
    scene.sample(0, 0x1800, 0xE100)
    scene.kernel.replaced = True
    scene.sample(1, 0x1800, 0xE100)
    assert scene.tracker.exec_count == 1
    assert scene.tracker.current is not old
    assert not scene.kernel.replaced


SLOW_NS, TOO_SLOW_NS = 400_000, 2_000_000


def slowly_read(monkeypatch: pytest.MonkeyPatch, read_ns: int) -> Asked:
    """Return a scene whose mappings have just been read, which took this time."""
    scene = Asked(PROGRAM, STACK, VDSO)
    clock = itertools.count(0, read_ns)
    monkeypatch.setattr("pyprof.collectors.targets.address_spaces.time", SimpleNamespace(thread_time_ns=clock.__next__))
    scene.tracker.refresh_space(itertools.count(0, read_ns).__next__, force=True)
    return scene


def test_a_new_image_is_read_at_its_first_stop_though_reading_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = slowly_read(monkeypatch, SLOW_NS)
    scene.directory.say(OTHER, OTHER_STACK, OTHER_VDSO)
    scene.kernel.replaced = True
    assert scene.tracker.collect_evidence(0xA800).text == scene.directory.text


def test_what_changed_is_read_right_after_the_stop_where_reading_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = slowly_read(monkeypatch, SLOW_NS)
    scene.directory.say(PROGRAM, ONE, STACK, VDSO)
    assert scene.tracker.collect_evidence(0x5800) == MapsEvidence(changed=True)


@pytest.mark.parametrize("replaced", [True, False])
def test_nothing_is_read_around_a_stop_where_that_takes_long(replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = slowly_read(monkeypatch, TOO_SLOW_NS)
    scene.directory.say(OTHER, OTHER_STACK, OTHER_VDSO)
    scene.kernel.replaced = replaced
    assert scene.tracker.collect_evidence(0xA800) == MapsEvidence()
    assert scene.tracker.stale


def test_a_lane_of_changed_mappings_is_in_the_space_that_is_read_after_its_stop(program: Start) -> None:
    target = program("c_spin", "1")
    with stopping(target.pid) as here:
        old = here.target.spaces.current
        held = next(iter(here.target.threads.values()))
        here.target.spaces._changes.replaced = True  # as after exec
        here.stopper.copy.clear()
        here.stopper.copy.add_lane(SampleKind.STOPPED, held, here.target.spaces, 1, 0, MapsEvidence(changed=True))
        (batch,) = here.builder.take_batches()
    assert old.id not in batch.space


class Size:
    """A simulated /proc/PID/statm with the mapped size."""

    def __init__(self) -> None:
        self.pages = 1

    def read(self) -> int:
        return self.pages


def test_while_as_much_is_mapped_mappings_are_asked_for_seldom() -> None:
    scene, size = Asked(PROGRAM, STACK), Size()
    scene.tracker._changes = MapChanges(cast(MapQuery, scene.kernel), cast(MappedSize, size))

    def look(ms: int) -> int:
        before = scene.kernel.asked_for_all
        scene.tracker.refresh_space(lambda: ms * 1_000_000)
        return scene.kernel.asked_for_all - before

    scene.tracker.refresh_space(lambda: 0, force=True)
    assert [look(ms) for ms in (1, 2, 30, 50, 51, 52, 90)] == [1, 0, 0, 0, 1, 0, 0]
    size.pages = 2
    assert [look(ms) for ms in (91, 92)] == [1, 0]
    scene.directory.say(PROGRAM, ONE, STACK)
    scene.tracker.note_sample(0, 0x1800, 0xE100)
    assert look(93) == 0
    size.pages = 3
    moved = scene.tracker.refresh_space(lambda: 94_000_000)
    assert [(lane, [module.name for module in space.modules]) for lane, space in moved] == [(0, ["program", "one.so"])]


def test_before_a_batch_leaves_each_mapping_is_asked_about_once_more() -> None:
    """Change writable and executable memory, which does not change the mapped size."""
    scene, size = Asked(PROGRAM, STACK), Size()
    scene.tracker._changes = MapChanges(cast(MapQuery, scene.kernel), cast(MappedSize, size))
    for ms in (0, 1):
        scene.tracker.refresh_space(lambda ms=ms: ms * 1_000_000, force=not ms)  # type: ignore[misc]
    scene.directory.say(PROGRAM, ONE, STACK)
    scene.tracker.note_sample(0, 0x1800, 0xE100)
    assert not scene.tracker.refresh_space(lambda: 2_000_000)
    moved = scene.tracker.refresh_space(lambda: 2_000_001, last=True)
    assert [(lane, [module.name for module in space.modules]) for lane, space in moved] == [(0, ["program", "one.so"])]


def test_what_is_mapped_has_a_size_that_changes_with_it() -> None:
    directory = ProcDir(os.getpid())
    size = MappedSize(directory)
    before = size.read()
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 1 << 30, private):
        assert size.read() == before
    with mmap.mmap(-1, 1 << 30, private, mmap.PROT_READ | mmap.PROT_EXEC):
        assert size.read() == before + (1 << 30) // mmap.PAGESIZE
    size.close()
    assert size.read() == -1
    directory.close()


def test_a_kernel_whose_answers_do_not_fit_its_text_is_not_asked_for_ever() -> None:
    scene = Asked(PROGRAM, STACK)
    scene.kernel.wrong = True
    for lane in range(20):
        scene.sample(lane, 0x1800, 0xE100)
    assert not scene.kernel.wrong  # reset when the tracker closes the query


def test_kernel_is_still_asked_after_many_libraries_were_gone_when_the_text_was_read() -> None:
    """Unload a library right after the stop eight times, then load one that stays, and again."""
    scene = Asked(PROGRAM, STACK)
    scene.kernel.wrong = True
    for library in (ONE, TWO, ONE):
        for lane in range(8):
            scene.sample(lane, 0x1800, 0xE100)
        scene.directory.say(PROGRAM, library, STACK)
        scene.sample(8, 0x1800, 0xE100)
        assert scene.kernel.wrong  # reset when the tracker closes the query
