"""Tests of segment names, of times as users write them, and of the ends of windows."""

from __future__ import annotations

import datetime
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import UsageError
from pyprof.fleet.agent.windows import WindowClock
from pyprof.fleet.toml_config_files import TimeSpan, moment, span
from pyprof.fleet.wire.segment_names import SegmentName, folder_of

NOW = datetime.datetime(2026, 11, 23, 15, 30)
HOUR = 3600 * 10**9


def at(*parts: int) -> int:
    return int(datetime.datetime(*parts).timestamp()) * 10**9  # type: ignore[arg-type]


@given(st.text(max_size=300))
def test_any_service_is_one_folder_and_nothing_else(service: str) -> None:
    folder = folder_of(service)
    assert os.path.basename(folder) == folder
    assert folder
    assert not folder.startswith(".")
    assert len(folder) <= 200
    assert folder.isascii()


def test_service_comes_back_from_its_folder() -> None:
    name = SegmentName.new("../web server/ü", at(2026, 11, 23, 1, 0))
    assert name.service == "../web server/ü"
    assert SegmentName.parse(*name.path.split("/")) == name


def test_long_services_that_differ_at_their_end_have_folders_of_their_own() -> None:
    assert len({folder_of("ü" * 100 + end) for end in "ab"}) == 2


@pytest.mark.parametrize(
    "name", ["x", "1-2.pb.gz", f"12-{'a' * 31}.pb.gz", f"12-{'a' * 32}.pb", f".12-{'a' * 32}.part"]
)
def test_other_files_are_no_segments(name: str) -> None:
    assert SegmentName.parse("2026-11-23", "web", name) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", at(2026, 11, 23, 13, 30)),
        ("90m ago", at(2026, 11, 23, 14, 0)),
        ("14:00", at(2026, 11, 23, 14, 0)),
        ("yesterday 9:05", at(2026, 11, 22, 9, 5)),
        ("2026-01-02 03:04:05", at(2026, 1, 2, 3, 4, 5)),
        ("now", at(2026, 11, 23, 15, 30)),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert moment(text, NOW) == expected


def test_spans() -> None:
    assert span("yesterday 14:00-15:00", NOW) == TimeSpan(at(2026, 11, 22, 14, 0), at(2026, 11, 22, 15, 0))
    assert span("23:00 - 01:00", NOW) == TimeSpan(at(2026, 11, 23, 23, 0), at(2026, 11, 24, 1, 0))


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01 10:00", "999999999w", "14"])
def test_invalid_time_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        moment(text, NOW)
    with pytest.raises(UsageError):
        span(text, NOW)


@given(st.floats(0, 4e9), st.sampled_from([1.0, 5.0, 60.0, 3600.0]))
def test_windows_end_at_multiples_of_their_length(now: float, every: float) -> None:
    clock = WindowClock(every, every / 50)
    left = clock.left(now)
    assert every / 4 <= left <= 1.25 * every
    beside = (now + left - every / 50) % every
    assert min(beside, every - beside) < 1e-5
