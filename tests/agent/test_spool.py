"""Tests of the spool without crashes: limits, queues, segments set aside, and access rights."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pyprof.errors import OutputError
from pyprof.fleet.agent import spool as spool_module
from pyprof.fleet.agent.spool import LARGE, MANY, OLD, REFUSED, SO_FAR, STRANGE, Caps, Restore, Spool, SpoolSegment
from pyprof.fleet.file_system_calls import Disk, locked
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.problem_counters import Diagnostics

DAY_NS = 86_400 * 10**9


def nothing(paths: Sequence[str], window: str, broken: Callable[[], None]) -> Sequence[SpoolSegment]:
    return ()


def spool(folder: Path, caps: Caps, restore: Restore = nothing) -> tuple[Spool, Diagnostics]:
    counts = Diagnostics()
    found = Spool(str(folder), caps, counts, sinks=("far",), clock=lambda: 100 * DAY_NS, restore=restore)
    found.open()
    return found, counts


def segment(day: float, size: int = 10) -> SpoolSegment:
    return SpoolSegment(SegmentName.new("web", int(day * DAY_NS)), b"x" * size)


def files(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[0]) // DAY_NS for path in folder.glob("19*/web/*"))


@pytest.mark.parametrize(
    ("caps", "left", "reason"),
    [
        (Caps(most_files=2), [98, 99], MANY),
        (Caps(most_bytes=25), [98, 99], LARGE),
        (Caps(age_s=3.5 * 86_400), [97, 98, 99], OLD),
    ],
)
def test_oldest_go_first_and_are_counted(caps: Caps, left: list[int], reason: str, tmp_path: Path) -> None:
    found, counts = spool(tmp_path, caps)
    for day in (97, 95, 99, 96, 98):
        found.store_window([segment(day)])
    assert files(tmp_path) == left
    assert files(tmp_path / "queue/far") == left
    assert counts.counts == {reason: 5 - len(left)}
    assert found.inventory.bytes == 10 * len(left)


def test_folders_that_are_empty_go(tmp_path: Path) -> None:
    found, _ = spool(tmp_path, Caps(most_files=1))
    found.store_window([segment(90), segment(91)])
    assert [path.name for path in tmp_path.glob("19*")] == ["1970-04-02"]


def test_start_reads_names_and_sizes_only(tmp_path: Path) -> None:
    found, _ = spool(tmp_path, Caps())
    found.store_window([segment(day, 100) for day in range(90, 95)])
    paths = [*tmp_path.glob("19*/web/*"), *tmp_path.glob("queue/far/19*/web/*")]
    for path in paths:
        path.write_bytes(b"broken")
    for path in paths:  # two of the paths are links to one file
        path.chmod(0)
    again, _ = spool(tmp_path, Caps(most_bytes=13))
    assert files(tmp_path) == [93, 94]
    assert again.inventory.bytes == 12


def restore(paths: Sequence[str], window: str, broken: Callable[[], None]) -> list[SpoolSegment]:
    """Join checkpoints whose bytes are days."""
    parts = [Path(path).read_bytes() for path in paths]
    for _ in range(parts.count(b"broken")):
        broken()
    data = b"".join(part for part in parts if part != b"broken")
    return [
        SpoolSegment(SegmentName.new(service, data[-1] * DAY_NS, window), data) for service in ("web", "db") if data
    ]


def test_window_under_way_is_saved_once_and_becomes_a_segment_after_a_crash(tmp_path: Path) -> None:
    """Restore the readable checkpoints of an unfinished window, and nothing for a window that has ended."""
    window, other = "a" * 32, "b" * 32
    found, _ = spool(tmp_path, Caps())
    for day in (90, 91):
        assert found.save(window, day * DAY_NS, bytes([day]))
    folder = tmp_path / SO_FAR
    assert len(list(folder.iterdir())) == 2
    (folder / f".{window}.part").write_bytes(b"unfinished")

    (folder / f"{92 * DAY_NS:019}-{other}").write_bytes(b"broken")
    again, counts = spool(tmp_path, Caps(), restore)
    assert again.recovered == 2
    assert files(tmp_path) == files(tmp_path / "queue/far") == [91]
    assert (tmp_path / SegmentName.new("db", 91 * DAY_NS, window).path).read_bytes() == bytes([90, 91])
    assert list(folder.iterdir()) == []
    assert counts.counts == {STRANGE: 1}
    assert again.save(other, 91 * DAY_NS, b"b")
    assert again.save(other, 92 * DAY_NS, b"c")
    assert again.store_window([SpoolSegment(SegmentName.new("web", 92 * DAY_NS, other), b"c")], other)
    assert not list(folder.iterdir()), "what was saved goes with its window"


class FullUntil(Disk):
    """A disk on which no file can be created while full() returns True."""

    def __init__(self, full: Callable[[], bool]) -> None:
        self._full = full

    def create(self, path: str) -> int:
        if self._full():
            raise OSError(errno.ENOSPC, "no room")
        return super().create(path)


def test_disk_that_is_full_loses_what_may_be_missed_before_any_segment(tmp_path: Path) -> None:
    freed: list[int] = []
    found, _ = spool(tmp_path, Caps())
    assert found.store_window([segment(90)])
    counts = Diagnostics()

    def spare() -> int:
        freed.append(1000)
        return 1000

    full = Spool(str(tmp_path), Caps(), counts, FullUntil(lambda: not freed), clock=lambda: 100 * DAY_NS, spare=spare)
    full.open()
    assert full.store_window([segment(91)])
    assert (freed, files(tmp_path), counts.counts) == ([1000], [90, 91], {})


def test_strange_files_are_counted_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "2026-11-23/web").mkdir(parents=True)
    (tmp_path / "2026-11-23/web/notes.txt").write_text("mine")
    (tmp_path / "2026-11-23/web/.1.pb.gz.part").write_text("unfinished")
    (tmp_path / "other").mkdir()
    _, counts = spool(tmp_path, Caps())
    assert counts.counts == {STRANGE: 1}
    assert [path.name for path in (tmp_path / "2026-11-23/web").iterdir()] == ["notes.txt"]


def test_sink_takes_or_refuses_and_the_segment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 5
    monkeypatch.setattr(spool_module, "MAX_REFUSED", most)
    found, counts = spool(tmp_path, Caps(age_s=1e9))
    found.store_window([segment(1 + number / 1000) for number in range(most + 3)])
    first, *others = found.queued("far")
    found.sent("far", first)
    for name in others:
        found.refused("far", name, "too_old")
    assert list(found.queued("far")) == []
    assert len(list((tmp_path / "refused/too_old").iterdir())) == most
    assert counts.counts[REFUSED] == 2
    assert len(files(tmp_path)) == most + 3


def test_spool_whose_folder_was_removed_counts_what_sinks_lack_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    found = Spool(str(folder), Caps(), Diagnostics(), sinks=("nas",), clock=lambda: 0)
    found.open()
    assert found.store_window([segment(1), segment(2)])
    found.sent("nas", next(found.queued("nas")))
    shutil.rmtree(folder)
    assert not found.store_window([segment(3)])
    folder.mkdir()
    found.reopen()
    assert found.lost == {"nas": 1}
    assert found.store_window([])
    assert files(folder) == [3]
    assert len(found.inventory) == len(list(found.queued("nas"))) == 1
    found.probe()
    assert found.failure is None
    assert not list((folder / "sofar").iterdir())


def test_spool_whose_files_were_removed_finds_that_and_keeps_unfinished_windows(tmp_path: Path) -> None:
    found = Spool(str(tmp_path), Caps(), Diagnostics(), sinks=("nas",), clock=lambda: 0)
    found.open()
    assert found.store_window([segment(1), segment(2)])
    assert found.save("0" * 32, 3, b"checkpoint")
    assert not found.is_removed()
    for path in tmp_path.glob("*/*/*.pb.gz"):
        path.unlink()
    assert found.is_removed()
    found.reopen()
    assert not found.is_removed()
    assert (len(found.inventory), found.recovered, len(list((tmp_path / "sofar").iterdir()))) == (2, 0, 1)
    assert len(list(found.queued("nas"))) == 2, "hard links of the queue are still there"


def test_one_agent_has_the_spool(tmp_path: Path) -> None:
    lock = locked(str(tmp_path / "spool"))
    assert lock
    with pytest.raises(OutputError, match="another agent"):
        locked(str(tmp_path / "spool"))


def test_folder_of_everybody_is_no_spool(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(OutputError, match="other users may write"):
        locked(str(tmp_path))


def test_spool_names_its_last_error_also_when_making_room_helped(tmp_path: Path) -> None:
    freed: list[int] = []
    full = Spool(
        str(tmp_path),
        Caps(),
        Diagnostics(),
        FullUntil(lambda: len(freed) % 2 == 0),
        clock=lambda: 100 * DAY_NS,
        spare=lambda: freed.append(1) or 1000,  # type: ignore[func-returns-value]
    )
    full.open()
    assert full.failure is None
    assert full.store_window([segment(90)])
    assert full.failure is not None
    assert full.failure.errno == errno.ENOSPC
    assert full.store_window([segment(91)])
    assert full.failure is None
    freed.append(1)
    assert not full.save("0" * 32, 1, b"")
    assert full.failure is not None


def test_window_of_a_failed_recording_becomes_segments_at_once_and_only_once(tmp_path: Path) -> None:
    failed, other = "a" * 32, "b" * 32
    found, _ = spool(tmp_path, Caps(), restore)
    for day in (90, 91):
        assert found.save(failed, day * DAY_NS, bytes([day]))
    assert found.save(other, 92 * DAY_NS, bytes([92]))
    assert found.recover(failed) == 2
    assert (tmp_path / SegmentName.new("db", 91 * DAY_NS, failed).path).read_bytes() == bytes([90, 91])
    assert files(tmp_path / "queue/far") == [91]
    assert len(list((tmp_path / SO_FAR).iterdir())) == 1, "the other window is still under way"
    assert found.recover(failed) == found.recover("") == 0
    again, _ = spool(tmp_path, Caps(), restore)
    assert files(tmp_path) == [91, 92]
    assert again.recovered == 2


@pytest.mark.parametrize("is_killed", [True, False])
def test_checkpoints_without_room_become_segments_once_there_is_room(is_killed: bool, tmp_path: Path) -> None:
    window, is_full = "a" * 32, False
    found = Spool(
        str(tmp_path), Caps(), Diagnostics(), FullUntil(lambda: is_full), clock=lambda: 100 * DAY_NS, restore=restore
    )
    found.open()
    assert found.save(window, 90 * DAY_NS, bytes([90]))
    is_full = True
    if is_killed:
        found = Spool(
            str(tmp_path), Caps(), Diagnostics(), FullUntil(lambda: is_full), clock=lambda: 1, restore=restore
        )
        found.open()
    else:
        assert found.recover(window) == 0
    assert found.recover_waiting() == found.recovered == 0
    is_full = False
    assert (found.recover_waiting(), found.recovered) == (2, 2)
    assert files(tmp_path) == [90]
    assert not list((tmp_path / SO_FAR).iterdir())
    assert found.recover_waiting() == 0
