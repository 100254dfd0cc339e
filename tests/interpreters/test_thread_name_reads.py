"""Tests of how often Python's thread names are read: rarely if they stay the same, soon for new threads."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from pyprof.interpreters.cpython.runtime_validation import PyThread
from pyprof.interpreters.cpython.thread_snapshot import ReadHints
from pyprof.interpreters.cpython.threads import KnownThread, PythonThreadNames, ThreadList, ThreadNameTable

THREAD = PyThread(0x1000, 7, 42, 0x2000, 0, 0, 0)


class Book:
    """A name book with one thread of tid 7 on a simulated clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.name = "one"
        self.reads: list[float] = []
        monkeypatch.setattr(time, "monotonic_ns", lambda: round(self.now_s * 1e9))
        self.book = ThreadNameTable()
        self.book.read_from(cast(PythonThreadNames, self))
        self.threads = cast(ThreadList, SimpleNamespace(known={7: KnownThread([(THREAD, ReadHints())])}))

    def read_names(self) -> dict[int, str]:
        self.reads.append(self.now_s - 100)
        return {42: self.name}

    def look_until(self, seconds: float) -> list[float]:
        """Check the names each tenth of a second, and return the times at which they were read."""
        self.reads.clear()
        while self.now_s < 100 + seconds:
            self.book.read_if_due(self.threads)
            self.now_s = round(self.now_s + 0.1, 3)
        return [round(at, 1) for at in self.reads]


def test_names_that_stay_are_read_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Book(monkeypatch)
    assert found.look_until(270) == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]


def test_after_a_change_they_are_read_each_second_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Book(monkeypatch)
    found.look_until(20)
    found.name = "another"
    assert found.look_until(40) == [31, 32, 34, 38]
    assert found.book.names == {7: "another"}


def test_thread_that_comes_has_its_name_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Book(monkeypatch)
    found.look_until(20)
    found.book.hasten_read([7])
    assert found.look_until(23) == [20.1, 22.1]


def test_names_are_not_read_before_a_thread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Book(monkeypatch)
    threads, found.threads = found.threads, cast(ThreadList, SimpleNamespace(known={}))
    assert found.look_until(2) == []
    found.threads = threads
    assert found.look_until(3) == [2]
