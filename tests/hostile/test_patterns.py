"""Tests of names that make regular expressions backtrack: pyprof handles them in linear time or not at all."""

from __future__ import annotations

import pytest

from pyprof.cli.number_and_name_format import function_name, function_names
from pyprof.comparison.function_matching import plain_name
from pyprof.exporters.display_names import Level
from pyprof.exporters.flamegraph_tree import start_nodes
from pyprof.model.profile import FrameKind
from tests.exporters.profiles import golden


def test_additions_of_compilers_are_looked_for_at_the_end_of_a_name_only() -> None:
    for addition in (".isra", ".isra.1", " (.cold)", " [clone .part]"):
        name = "f" + addition * 200_000
        assert plain_name(name + "x") == name + "x"
    assert plain_name("f" * 100_000 + ".isra.0.cold") == "f" * 100_000


def test_names_that_are_too_long_are_no_start_of_a_program() -> None:
    callback = "<F as core::ops::function::FnOnce<()>>::call_once"
    endless = "<" + " as core::ops::function::Fn<" * 100_000

    def known(name: str) -> bool:
        levels = [None, Level("_start", FrameKind.NATIVE, 0), Level(name, FrameKind.NATIVE, 0)]
        return 2 in start_nodes(golden(), [0, 0, 1], levels, [1, 1, 1])

    assert known(callback)
    assert not known(endless)


def test_names_of_any_length_that_look_alike_are_shortened_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    shortened: list[str] = []

    def counted(name: str, width: int) -> str:
        shortened.append(name)
        return function_name(name, width)

    monkeypatch.setattr("pyprof.cli.number_and_name_format.function_name", counted)
    names = [f"f<{'<' * 4000}{number}>" for number in range(40)]
    assert len(function_names(names, 30)) == 40
    assert len(shortened) <= 2 * len(names)
