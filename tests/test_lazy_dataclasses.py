"""Tests of dataclasses that are cheap to define, against those of the standard library."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from pyprof import lazy_dataclasses
from tests import syntax
from tests.test_layers import ROOT, sources


def classes(dataclass: Callable[..., Any], field: Callable[..., Any]) -> dict[str, Any]:
    """Return the same classes, defined with one of the two implementations."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """A frozen class with slots, defaults and a method."""

        x: int
        y: int = 2
        labels: list[str] = field(default_factory=list, compare=False, repr=False)
        unit: ClassVar[str] = "m"

        def area(self) -> int:
            return self.x * self.y

    @dataclass(frozen=True, slots=True)
    class Place(Point):
        name: str = field(default="", kw_only=True)
        y: int = 3

    @dataclass
    class Counter:
        count: int = 0
        seen: set[int] = field(default_factory=set, init=False)
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            self.twice = 2 * self.count

    @dataclass(slots=True, eq=False)
    class Node:
        value: int
        limit: int = field(default=7, init=False)

    @dataclass(frozen=True, order=True, kw_only=True)
    class Version:
        major: int
        minor: int = 0

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(frozen=True, repr=False)
    class Own:
        text: str

        def __repr__(self) -> str:
            return f"<{self.text}>"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    return {kind.__name__: kind for kind in (Point, Place, Counter, Node, Version, Empty, Own)}


def parameters(kind: type) -> list[tuple[str, object]]:
    found = inspect.signature(kind).parameters.values()
    return [(each.name, each.kind) for each in found]


OURS = classes(lazy_dataclasses.dataclass, lazy_dataclasses.field)
STANDARD = classes(dataclasses.dataclass, dataclasses.field)

VALUES = [
    "Point(1)",
    "Point(1, 3, ['a'])",
    "Point(y=5, x=4)",
    "Place(1, name='here')",
    "Place(1, 9)",
    "Counter()",
    "Counter(4)",
    "Version(major=3)",
    "Version(major=3, minor=1)",
    "Empty()",
    "Own('x')",
]


@pytest.mark.parametrize("text", VALUES)
def test_value_is_what_the_standard_library_makes(text: str) -> None:
    ours, standard = eval(text, dict(OURS)), eval(text, dict(STANDARD))
    kind = type(ours)
    assert repr(ours) == repr(standard)
    assert kind.__match_args__ == type(standard).__match_args__
    assert ("__slots__" in vars(kind)) == ("__slots__" in vars(type(standard)))
    assert lazy_dataclasses.field_names(kind) == tuple(each.name for each in dataclasses.fields(standard))
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
    assert dataclasses.replace(ours) == ours
    assert parameters(kind) == parameters(type(standard))
    assert lazy_dataclasses.replace(ours) == ours
    if type(standard).__hash__ is None:
        assert kind.__hash__ is None
    else:
        assert hash(ours) == hash(standard)


@pytest.mark.parametrize(
    "text",
    [
        "Point()",
        "Point(1, 2, [], 4)",
        "Point(1, z=3)",
        "Place(1, 2, [], 'here')",
        "Version(3)",
        "Counter(1, {2})",
        "Node(1).__dict__",
        "Version(major=1) < 2",
    ],
)
def test_what_the_standard_library_refuses_is_refused(text: str) -> None:
    errors = []
    for known in (OURS, STANDARD):
        with pytest.raises((TypeError, AttributeError)) as error:
            eval(text, dict(known))
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("known", [OURS, STANDARD], ids=["ours", "standard"])
def test_values_compare_by_their_class_and_what_is_compared(known: dict[str, Any]) -> None:
    point, place, version = known["Point"], known["Place"], known["Version"]
    assert point(1, 2, ["a"]) == point(1, 2, ["b"])
    assert point(1, 2) != point(1, 3)
    assert point(1, 3) != place(1, 3)
    assert len({point(1), point(1), point(2)}) == 2
    assert sorted([version(major=2), version(major=1, minor=3), version(major=1)])[1].minor == 3
    assert known["Node"](1) != known["Node"](1)


@pytest.mark.parametrize("known", [OURS, STANDARD], ids=["ours", "standard"])
def test_frozen_value_is_not_changed(known: dict[str, Any]) -> None:
    point = known["Point"](1)
    with pytest.raises(AttributeError):
        point.x = 2
    with pytest.raises(AttributeError):
        del point.x
    assert (point.x, dataclasses.replace(point, x=6).area()) == (1, 12)


def test_instances_do_not_share_what_a_factory_made() -> None:
    one, other = OURS["Counter"](), OURS["Counter"]()
    one.seen.add(3)
    assert other.seen == set()
    assert OURS["Node"](1).limit == 7


def test_shared_default_that_can_change_is_refused() -> None:
    with pytest.raises(TypeError, match="default_factory"):

        @lazy_dataclasses.dataclass
        class Shared:
            values: list[int] = []  # noqa: RUF012


@lazy_dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """A class at module level, where pickle finds it."""

    number: int
    words: tuple[str, ...] = ()


def test_frozen_value_with_slots_is_pickled_and_copied() -> None:
    sent = Sent(3, ("a",))
    assert pickle.loads(pickle.dumps(sent)) == copy.deepcopy(sent) == sent


@lazy_dataclasses.dataclass
class Begun:
    number: int


def test_thread_that_entered_a_method_before_another_one_replaced_it_gets_there() -> None:
    entered = Begun.__init__  # a second thread may run this while the first one compiles
    first = Begun(1)
    assert Begun.__init__ is not entered
    second = Begun.__new__(Begun)
    entered(second, 2)
    assert (first.number, second.number) == (1, 2)


def test_the_package_defines_no_dataclass_of_the_standard_library() -> None:
    users = [
        str(path.relative_to(ROOT))
        for _, path in sources()
        for node in syntax.nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
        if {alias.name for alias in node.names} & {"dataclass", "field", "replace"}
    ]
    assert set(users) == {"profiler/lazy_dataclasses.py"}
