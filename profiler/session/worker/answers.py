"""What the worker answers, as bytes, and back in the sampler.

The worker parses what targets and their files hold; the sampler has rights that the worker may lack. So an answer is
nothing but numbers, texts, arrays, and values of the classes that a Profile is made of: no function of the worker's
choice is called in the sampler.
"""

from __future__ import annotations

import copyreg
import io
import json
import pickle
from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from pyprof import errors
from pyprof.errors import PyprofError
from pyprof.exporters import base
from pyprof.model.profile import Profile
from pyprof.records import dataclass, is_record
from pyprof.session.worker.channel import Part


def _values(kind: Any, found: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """Every dataclass, named tuple and enumeration of which a value of this type may hold values, itself included."""
    for part in get_args(kind):
        _values(part, found)
    if isinstance(kind, type) and (is_record(kind) or issubclass(kind, Enum) or hasattr(kind, "_fields")):
        key = kind.__module__, kind.__qualname__
        if key not in found:
            found[key] = kind
            for part in () if issubclass(kind, Enum) else get_type_hints(kind).values():
                _values(part, found)
    return found


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _allowed(kind: Any) -> dict[tuple[str, str], Any]:
    """What a value of this class may be made of."""
    return _SENT if (kind.__module__, kind.__qualname__) in _SENT else _values(kind, dict(_SENT))


def _member(member: Enum) -> tuple[type[Enum], tuple[object]]:
    """How a member is pickled. CPython 3.11.0 to 3.11.3 would write a call of getattr, which is refused."""
    return type(member), (member.value,)


_FROM_BUFFER: Any = np.arange(1).__reduce_ex__(5)[0]
"""How numpy makes an array of bytes that travel beside a pickle; it refuses arrays of objects."""


_MOST_ALIKE = 1 << 26
"""Numbers of an array whose rows are alike."""


def all_alike(row: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """An array of so many rows, each of which is this one: in memory there is one. Raises ValueError."""
    if not 0 <= count * len(row) <= _MOST_ALIKE or not all(isinstance(each, int) for each in row):
        raise ValueError(f"{count} rows that are alike")
    return np.broadcast_to(np.array(row, np.int64), (count, len(row)))


def _reduced(array: npt.NDArray[Any]) -> Any:
    """How an array is pickled: of rows that are one in memory only that one."""
    if array.dtype == np.int64 and array.ndim == 2 and not array.strides[0] and 0 < array.size <= _MOST_ALIKE:
        return all_alike, (tuple(array[0].tolist()), len(array))
    return np.ascontiguousarray(array).__reduce_ex__(5)


_PLAIN: tuple[Any, ...] = (_FROM_BUFFER, np.dtype, all_alike)
_SENT = _values(Profile, _values(base.JournalPart, _values(base.JournalBeginning, {}))) | {
    (value.__module__, value.__qualname__): value for value in _PLAIN
}
_ERRORS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}


Value = TypeVar("Value")


class WorkerFailed(RuntimeError):
    """The process that unwinds and names met an error of its own."""


class AnswerRefused(Exception):
    """An answer that holds something else than values."""


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """A batch was unwound. top, missing, stop: columns of Feedback, () of a batch in which there was nothing to unwind.

    look: Feedback.look is wanted. took_ns: as there.
    """

    number: int
    top: npt.NDArray[np.uint64]
    missing: npt.NDArray[np.uint64]
    stop: npt.NDArray[np.bool_]
    look: bool
    took_ns: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an Ask.

    Attributes:
        number: The number of the Ask.
        functions: Numbers of the interpreters' functions in the window that was closed, None if no window was closed.
        data: The profile (see unpacked_profile), empty if the file broker gave it to a sink.
    """

    number: int
    functions: tuple[int, ...] | None
    data: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ErrandPiece:
    """One of those that an Examine gives before it is Done."""

    number: int
    data: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class AskFailed:
    """number: of the Ask that could not be met, 0: a batch could not be unwound. kind: name of the error's class."""

    number: int
    kind: str
    message: str
    hint: str
    trace: str

    @property
    def error(self) -> Exception:
        kind = _ERRORS.get(self.kind)
        if kind is not None and kind is not errors.FormatError:
            named: PyprofError = kind(self.message, self.hint)
            return named
        made = WorkerFailed(f"{self.kind}: {self.message}")
        made.add_note(self.trace)
        return made


@dataclass(frozen=True, slots=True)
class SamplerCall:
    """The worker waits for something about an address space that only the sampler can find out. what: read, files,
    stated.
    """

    what: str
    space: int
    at: int
    size: int


Answer = BatchTaken | ErrandPiece | Done | AskFailed | SamplerCall


def pack(answer: Answer) -> list[Part]:
    head: tuple[Any, ...]
    parts: list[Part] = []
    match answer:
        case BatchTaken(number, top, missing, stop, look, took_ns):
            head = "BatchTaken", number, look, took_ns
            parts = [top.tobytes(), missing.tobytes(), stop.tobytes()]
        case ErrandPiece(number, data):
            head = "ErrandPiece", number
            parts = list(data)
        case Done(number, functions, data):
            head = "Done", number, functions
            parts = list(data)
        case AskFailed(number, kind, message, hint, trace):
            head = "AskFailed", number, kind, message, hint, trace
        case SamplerCall(what, space, at, size):
            head = "SamplerCall", what, space, at, size
    return [json.dumps(head).encode(), *parts]


def unpack(parts: Sequence[memoryview]) -> Answer:
    """Raises AnswerRefused."""
    try:
        head = json.loads(bytes(parts[0]))
        match head:
            case ["BatchTaken", int(number), bool(look), int(took_ns)]:
                top, missing = (np.frombuffer(part, np.uint64) for part in parts[1:3])
                return BatchTaken(number, top, missing, np.frombuffer(parts[3], np.bool_), look, took_ns)
            case ["ErrandPiece", int(number)]:
                return ErrandPiece(number, tuple(parts[1:]))
            case ["Done", int(number), None]:
                return Done(number, None, tuple(parts[1:]))
            case ["Done", int(number), list(functions)]:
                return Done(number, tuple(map(int, functions)), tuple(parts[1:]))
            case ["AskFailed", int(number), str(kind), str(message), str(hint), str(trace)]:
                return AskFailed(number, kind, message, hint, trace)
            case ["SamplerCall", str(what), int(space), int(at), int(size)]:
                return SamplerCall(what, space, at, size)
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise AnswerRefused(str(error)) from None
    raise AnswerRefused("an answer of no known kind")


def packed_value(found: object) -> tuple[Part, ...]:
    """found: of a class that _allowed() describes, a Profile for one."""
    buffers: list[pickle.PickleBuffer] = []
    data = io.BytesIO()
    pickler = pickle.Pickler(data, protocol=5, buffer_callback=buffers.append)
    by_value: Any = {kind: _member for kind in _allowed(type(found)).values() if _is_enum(kind)} | {
        np.ndarray: _reduced
    }
    pickler.dispatch_table = copyreg.dispatch_table | by_value
    pickler.dump(found)
    return data.getvalue(), *(buffer.raw() for buffer in buffers)


def unpacked_profile(parts: Sequence[Part]) -> Profile:
    """Raises AnswerRefused."""
    return unpacked_value(parts, Profile)


@cache
def layout() -> str:
    """Another text where a packed Profile holds other fields than here: it was packed by another version."""
    from _blake2 import blake2b  # hashlib loads OpenSSL

    classes = [f"{kind.__module__}.{kind.__qualname__}{_members(kind)}" for kind in _allowed(Profile).values()]
    return blake2b("\n".join(sorted(classes)).encode(), digest_size=16).hexdigest()


def _members(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [f"{member.name}={member.value!r}" for member in kind]
    return [f"{name}: {of}" for name, of in getattr(kind, "__annotations__", {}).items()]


def unpacked_value(parts: Sequence[Part], kind: type[Value]) -> Value:
    """Raises AnswerRefused."""
    try:
        found = _Values(io.BytesIO(parts[0]), buffers=parts[1:], allowed=_allowed(kind)).load()
    except (
        pickle.UnpicklingError,
        ValueError,
        TypeError,
        IndexError,
        EOFError,
        AttributeError,
        MemoryError,
        OverflowError,
    ) as error:
        raise AnswerRefused(str(error)) from None
    if not isinstance(found, kind):
        raise AnswerRefused(f"no {kind.__name__}")
    return found


class _Values(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, *, allowed: dict[tuple[str, str], Any], buffers: Sequence[Part] = ()) -> None:
        super().__init__(file, buffers=buffers)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        found = self._allowed.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no value")
        return found
