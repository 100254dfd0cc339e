"""Output files: names, checks before recording, nothing lost when the place is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyprof.cli import output
from pyprof.errors import OutputError


def test_marks_in_a_file_name_are_replaced() -> None:
    name = output.Names(12, "a/b c", 0, 3).expand("%n-%p-%i-100%%-%x.html")
    assert name == "a_b_c-12-3-100%-%x.html"


def test_missing_folder_is_refused_before_recording(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not a directory"):
        output.check_writable(str(tmp_path / "no" / "a.html"))


def test_directory_as_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a directory"):
        output.check_writable(str(tmp_path))


def test_check_leaves_nothing_behind(tmp_path: Path) -> None:
    output.check_writable(str(tmp_path / "a.html"))
    assert os.listdir(tmp_path) == []


def test_output_that_cannot_be_written_is_offered_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with pytest.raises(OutputError) as caught:
        output.write(str(tmp_path / "gone" / "a.html"), lambda out: out.write(b"profile") and None)
    (other,) = elsewhere.iterdir()
    assert other.read_bytes() == b"profile"
    assert other.name.endswith("a.html")
    assert str(other) in caught.value.message


def test_offer_elsewhere_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.html").write_bytes(b"of another recording")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError):
        output.write(str(tmp_path / "gone" / "a.html"), lambda out: out.write(b"profile") and None)
    assert (tmp_path / "a.html").read_bytes() == b"of another recording"


def test_name_that_no_file_can_have_is_refused_before_recording(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="File name too long"):
        output.check_writable(str(tmp_path / ("a" * 300)))


def test_longest_name_of_a_file_is_written(tmp_path: Path) -> None:
    target = str(tmp_path / ("a" * 255))
    output.check_writable(target)
    assert output.write(target, lambda out: out.write(b"profile") and None) == target
    assert os.listdir(tmp_path) == ["a" * 255]


def test_long_process_name_leaves_room_in_the_file_name() -> None:
    assert len(output.Names(1 << 22, "n" * 255, 0, 3).expand("pyprof-%n-%p-%t-%i.speedscope.json")) < 128


def test_output_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        output.write(str(tmp_path / "a.html"), lambda out: out.write(b"profile") and None)
    finally:
        os.umask(before)
    assert (tmp_path / "a.html").stat().st_mode & 0o777 == 0o640


def test_full_disk_keeps_the_old_file_and_offers_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full answers every write with ENOSPC, as a full disk does."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OutputError, match="No space left"):
        output.write("/dev/full", lambda out: out.write(b"profile") and None)
    (other,) = tmp_path.iterdir()
    assert other.read_bytes() == b"profile"


def test_writer_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_bytes(b"old")

    def fail(out: object) -> None:
        raise ValueError("exporter")

    with pytest.raises(ValueError, match="exporter"):
        output.write(str(target), fail)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.html"]
