"""Dataclasses that are cheap to define: `dataclass`, `field` and `replace` as in the standard library.

The standard library compiles up to seven functions for each dataclass when its module is imported. That takes half a
millisecond for a class, and a recording imports three hundred of them. Here a method is compiled at its first call, and
most methods are never called. Type checkers see the standard library's functions.

Annotations must be strings (`from __future__ import annotations`). InitVar, KW_ONLY and unsafe_hash are not supported.
`dataclasses.fields`, `replace` and `asdict` work on these classes, too; the standard library is then imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

_FIELDS = "__record_fields__"
_ABSENT: Any = type("_Absent", (), {})()


class _Field(NamedTuple):
    """The arguments of `field`, as in the standard library's dataclasses."""

    default: Any = _ABSENT
    default_factory: Callable[[], Any] = _ABSENT
    init: bool = True
    repr: bool = True
    compare: bool = True
    kw_only: bool = False


_PLAIN = _Field()


def is_record(kind: type) -> bool:
    """Return True if this module's `dataclass` made the class or one of its bases."""
    return hasattr(kind, _FIELDS)


def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, those of the bases first.

    Raises:
        AttributeError: `dataclass` did not make this class.
    """
    return tuple(_fields(kind))


def _fields(kind: type) -> Mapping[str, _Field]:
    found: Mapping[str, _Field] = getattr(kind, _FIELDS)
    return found


def _dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,
    kw_only: bool = False,
) -> Any:
    def make(cls: type) -> type:
        own = dict(_own_fields(cls, kw_only))
        fields: dict[str, _Field] = {}
        for base in cls.__mro__[-2:0:-1]:
            fields |= vars(base).get(_FIELDS, {})
        fields |= own
        members: dict[str, Any] = {
            _FIELDS: fields,
            "__dataclass_fields__": _STANDARD_FIELDS,
            "__signature__": _SIGNATURE,
        }
        members["__match_args__"] = tuple(name for name, each in fields.items() if each.init and not each.kw_only)
        members["__init__"] = _at_first_call("__init__", lambda made: _init(made, fields, frozen))
        if repr:
            members["__repr__"] = _repr
        if eq or order:
            members |= _comparisons([name for name, each in fields.items() if each.compare], frozen, order)
        if frozen:
            members |= {"__setattr__": _refuse, "__delattr__": _refuse}
            if slots:
                members |= _states(tuple(fields))
        stated = cls.__dict__
        members = {name: it for name, it in members.items() if stated.get(name) is None}
        return _with_slots(cls, own, members) if slots else _in_place(cls, own, members)

    return make if cls is None else make(cls)


def _own_fields(cls: type, kw_only: bool) -> Iterator[tuple[str, _Field]]:
    stated = cls.__dict__
    for name, annotation in cls.__annotations__.items():
        if not annotation.startswith("ClassVar"):
            value = stated.get(name, _ABSENT)
            each = _PLAIN if value is _ABSENT else value if isinstance(value, _Field) else _Field(value)
            if isinstance(each.default, list | dict | set):
                raise TypeError(f"{cls.__name__}.{name}: all instances would share this default, use default_factory")
            yield name, each._replace(kw_only=True) if kw_only else each


def _with_slots(cls: type, own: Mapping[str, _Field], members: dict[str, Any]) -> type:
    """Return a copy of a class that has slots for its fields. Slots cannot be added to an existing class."""
    inherited = {
        name for base in cls.__mro__[:-1] for name, it in vars(base).items() if type(it) is MemberDescriptorType
    }
    kept = {name: it for name, it in vars(cls).items() if name not in own}
    for name in ("__dict__", "__weakref__"):
        kept.pop(name, None)
    slots = tuple(name for name in own if name not in inherited)
    return type(cls)(
        cls.__name__, cls.__bases__, kept | members | {"__slots__": slots, "__qualname__": cls.__qualname__}
    )


def _in_place(cls: type, own: Mapping[str, _Field], members: Mapping[str, Any]) -> type:
    for name, each in own.items():
        if each.default is not _ABSENT:
            setattr(cls, name, each.default)
        elif name in vars(cls):
            delattr(cls, name)
    for name, it in members.items():
        setattr(cls, name, it)
    return cls


def _at_first_call(name: str, make: Callable[[type], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a method that compiles its real code at the first call and replaces itself on the class.

    Two threads may call it at once. The second one uses the code that the first one has compiled.

    Args:
        name: Name of the method.
        make: Compiles the method for a class.
    """
    made: Callable[..., Any] | None = None

    def method(self: Any, *values: Any, **named: Any) -> Any:
        nonlocal made
        if made is None:
            owner = next((kind for kind in type(self).__mro__ if vars(kind).get(name) is method), None)
            if owner is not None:
                made = make(owner)
                setattr(owner, name, made)
        assert made is not None  # set before the class has the replacement
        return made(self, *values, **named)

    return method


def _method(owner: type, head: str, lines: list[str], known: dict[str, Any]) -> Any:
    exec(f"def {head}:\n " + "\n ".join(lines), known)  # noqa: S102 - the code consists of names and defaults of a class of pyprof
    made = known[head.partition("(")[0]]
    made.__qualname__ = f"{owner.__qualname__}.{made.__name__}"
    return made


def _init(made: type, fields: Mapping[str, _Field], frozen: bool) -> Any:
    """Compile a dataclass's __init__ that sets the fields in their order and then calls __post_init__."""
    known: dict[str, Any] = {"_absent": _ABSENT, "_set": object.__setattr__}
    parameters: tuple[list[str], list[str]] = ["self"], []
    body = []
    for name, each in fields.items():
        parameter = value = name
        if each.default is not _ABSENT:
            known[f"_default_{name}"] = each.default
            parameter = f"{name}=_default_{name}"
            value = name if each.init else f"_default_{name}"
        elif each.default_factory is not _ABSENT:
            known[f"_make_{name}"] = each.default_factory
            parameter = f"{name}=_absent"
            value = f"_make_{name}() if {name} is _absent else {name}" if each.init else f"_make_{name}()"
        if each.init:
            parameters[each.kw_only].append(parameter)
        if each.init or value != name:
            body.append(_setting(made, name, value, known) if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join([*parameters[0], *(["*", *parameters[1]] if parameters[1] else [])])
    return _method(made, f"__init__({head})", body or ["pass"], known)


def _setting(made: type, name: str, value: str, known: dict[str, Any]) -> str:
    """Return a line of code that sets a field of a frozen class.

    Args:
        made: The class.
        name: Name of the field.
        value: Expression for the value.
        known: Receives the globals that the line uses, such as a slot's setter, which is twice as fast as
            object.__setattr__.
    """
    slot = getattr(made, name, None)
    if type(slot) is not MemberDescriptorType:
        return f"_set(self, {name!r}, {value})"
    known[f"_set_{name}"] = slot.__set__
    return f"_set_{name}(self, {value})"


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name, each in _fields(type(self)).items() if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _comparisons(names: list[str], frozen: bool, order: bool) -> dict[str, Any]:
    def values(of: str) -> str:
        return f"({''.join(f'{of}.{name}, ' for name in names)})"

    def compared(name: str, sign: str) -> Any:
        line = (
            f"return {values('self')} {sign} {values('other')} if other.__class__ is self.__class__ else NotImplemented"
        )
        return _at_first_call(name, lambda made: _method(made, f"{name}(self, other)", [line], {}))

    def hashed(made: type) -> Any:
        return _method(made, "__hash__(self)", [f"return hash({values('self')})"], {})

    found = {"__eq__": compared("__eq__", "=="), "__hash__": _at_first_call("__hash__", hashed) if frozen else None}
    signs = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="} if order else {}
    return found | {name: compared(name, sign) for name, sign in signs.items()}


def _refuse(self: Any, name: str, _: Any = None) -> None:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: replace(value, {name}=...)")


def _states(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the methods __getstate__ and __setstate__ of a dataclass, for pickle and copy. The state is a list of the
    fields' values.
    """

    def state(made: type) -> Any:
        return _method(made, "__getstate__(self)", [f"return [{', '.join(f'self.{name}' for name in names)}]"], {})

    def set_state(made: type) -> Any:
        known: dict[str, Any] = {"_set": object.__setattr__}
        lines = [f"[{', '.join(names)}] = state", *(_setting(made, name, name, known) for name in names)]
        return _method(made, "__setstate__(self, state)", lines, known)

    return {
        "__getstate__": _at_first_call("__getstate__", state),
        "__setstate__": _at_first_call("__setstate__", set_state),
    }


class _StandardFields:
    """Descriptor of __dataclass_fields__, which the standard library's functions on dataclasses read.

    The first read replaces it on the class.
    """

    def __get__(self, _: object, kind: type) -> Any:
        import dataclasses

        fields = [
            (name, kind.__annotations__.get(name, "Any"), dataclasses.field(**_given(each)))
            for name, each in _fields(kind).items()
        ]
        found = dataclasses.make_dataclass(kind.__name__, fields).__dataclass_fields__  # type: ignore[attr-defined]
        kind.__dataclass_fields__ = found  # type: ignore[attr-defined]
        return found


class _Signature:
    """Descriptor of __signature__, which inspect.signature reads on a class."""

    def __get__(self, _: object, kind: type) -> Any:
        import inspect

        signature = inspect.signature(_init(kind, _fields(kind), frozen=False))
        return signature.replace(parameters=list(signature.parameters.values())[1:])


_STANDARD_FIELDS, _SIGNATURE = _StandardFields(), _Signature()


def _given(each: _Field) -> dict[str, Any]:
    return {name: value for name, value in each._asdict().items() if value is not _ABSENT}


def _replace(value: Any, /, **changes: Any) -> Any:
    """Return a copy of a record with other values. A field with init=False gets its default value."""
    kind = type(value)
    kept = {name: getattr(value, name) for name, each in _fields(kind).items() if each.init and name not in changes}
    return kind(**kept, **changes)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    dataclass, field, replace = _dataclass, _Field, _replace
