"""Codec for the worker's responses: the worker encodes them as bytes, the sampler decodes them.

The worker parses untrusted data of targets and their files, and the sampler may have rights that the worker lacks. So a
response contains only numbers, strings, arrays, and instances of the classes that a Profile is made of. The sampler
calls no function that the worker could choose.
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
from pyprof.lazy_dataclasses import dataclass, is_record
from pyprof.model.profile import Profile
from pyprof.session.worker.message_channel import Part


def _values(kind: Any, found: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """Return the classes of all values that a value of this type can contain, by (module, name): dataclasses, named
    tuples and enumerations.
    """
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
    """Return the classes and functions that the pickle of a value of this class may contain, by (module, name)."""
    return _SENT if (kind.__module__, kind.__qualname__) in _SENT else _values(kind, dict(_SENT))


def _member(member: Enum) -> tuple[type[Enum], tuple[object]]:
    """Return the pickle reduction of an enumeration member: its class and its value.

    CPython 3.11.0 to 3.11.3 would pickle a call of getattr, which the worker's decoder refuses.
    """
    return type(member), (member.value,)


_FROM_BUFFER: Any = np.arange(1).__reduce_ex__(5)[0]
"""Function by which numpy makes an array from an out-of-band pickle buffer. It refuses arrays of objects."""


_MAX_ALIKE = 1 << 26
"""Maximum number of elements in a received array of identical rows."""


def all_alike(row: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """Return an array of `count` identical rows that shares one row in memory.

    Args:
        row: The values of one row.
        count: Number of rows.

    Returns:
        Read-only int64 array of shape (count, len(row)) with stride 0 over the rows.

    Raises:
        ValueError: The array would be too large, or a value is not an int.
    """
    if not 0 <= count * len(row) <= _MAX_ALIKE or not all(isinstance(each, int) for each in row):
        raise ValueError(f"{count} rows that are alike")
    return np.broadcast_to(np.array(row, np.int64), (count, len(row)))


def _reduced(array: npt.NDArray[Any]) -> Any:
    """Return the pickle reduction of an array. Identical rows that share memory are pickled once."""
    if array.dtype == np.int64 and array.ndim == 2 and not array.strides[0] and 0 < array.size <= _MAX_ALIKE:
        return all_alike, (tuple(array[0].tolist()), len(array))
    return np.ascontiguousarray(array).__reduce_ex__(5)


_PLAIN: tuple[Any, ...] = (_FROM_BUFFER, np.dtype, all_alike)
_SENT = _values(Profile, _values(base.JournalPart, _values(base.JournalBeginning, {}))) | {
    (value.__module__, value.__qualname__): value for value in _PLAIN
}
_ERRORS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}


Value = TypeVar("Value")


class WorkerFailed(RuntimeError):
    """The worker raised an unexpected error, which is a bug in pyprof."""


class ResponseRefused(Exception):
    """A response of the worker contains something other than permitted values."""


@dataclass(frozen=True, slots=True)
class BatchTaken:
    """The worker's response that it has unwound a batch, with the feedback for the collector.

    Attributes:
        number: Number of the batch.
        top: Column of Feedback. `top`, `missing` and `stop` are empty if the batch had nothing to unwind.
        missing: Column of Feedback.
        stop: Column of Feedback.
        look: True if Feedback.look is needed, because code appears and disappears in the target.
        took_ns: Time that the worker took, in nanoseconds (see Feedback).
        has_new_code: True if many functions of a managed runtime appeared for the first time.
    """

    number: int
    top: npt.NDArray[np.uint64]
    missing: npt.NDArray[np.uint64]
    stop: npt.NDArray[np.bool_]
    look: bool
    took_ns: int = 0
    has_new_code: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The worker's final response to a ProfileRequest or to a one-shot task.

    Attributes:
        number: Number of the request.
        functions: Numbers of the interpreter functions in the closed window, None if no window was closed.
        data: The packed profile, empty if the file broker gave it to a sink (see unpacked_profile()).
    """

    number: int
    functions: tuple[int, ...] | None
    data: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ErrandPiece:
    """One of the results that a one-shot task yields, before the Done response."""

    number: int
    data: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request or a batch failed in the worker.

    Attributes:
        number: Number of the failed request, 0 if a batch could not be unwound.
        kind: Name of the class of the exception.
        message: Text of the exception.
        hint: Advice for the user, "" if there is none.
        trace: Formatted traceback, "" for a PyprofError.
    """

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
    """A question of the worker to the sampler about an address space that belongs to no process of this machine, such
    as one behind a GDB stub.

    Attributes:
        what: "read", "files" or "stated".
        space: Number of the address space.
        at: Address of the memory, or start address of the module.
        size: Number of bytes for "read", else 0.
    """

    what: str
    space: int
    at: int
    size: int


Answer = BatchTaken | ErrandPiece | Done | RequestFailed | SamplerCall


def pack(answer: Answer) -> list[Part]:
    head: tuple[Any, ...]
    parts: list[Part] = []
    match answer:
        case BatchTaken(number, top, missing, stop, look, took_ns, has_new_code):
            head = "BatchTaken", number, look, took_ns, has_new_code
            parts = [top.tobytes(), missing.tobytes(), stop.tobytes()]
        case ErrandPiece(number, data):
            head = "ErrandPiece", number
            parts = list(data)
        case Done(number, functions, data):
            head = "Done", number, functions
            parts = list(data)
        case RequestFailed(number, kind, message, hint, trace):
            head = "RequestFailed", number, kind, message, hint, trace
        case SamplerCall(what, space, at, size):
            head = "SamplerCall", what, space, at, size
    return [json.dumps(head).encode(), *parts]


def unpack(parts: Sequence[memoryview]) -> Answer:
    """Decode a response of the worker.

    Raises:
        ResponseRefused: The parts are not a valid response.
    """
    try:
        head = json.loads(bytes(parts[0]))
        match head:
            case ["BatchTaken", int(number), bool(look), int(took_ns), bool(has_new_code)]:
                top, missing = (np.frombuffer(part, np.uint64) for part in parts[1:3])
                stop = np.frombuffer(parts[3], np.bool_)
                return BatchTaken(number, top, missing, stop, look, took_ns, has_new_code)
            case ["ErrandPiece", int(number)]:
                return ErrandPiece(number, tuple(parts[1:]))
            case ["Done", int(number), None]:
                return Done(number, None, tuple(parts[1:]))
            case ["Done", int(number), list(functions)]:
                return Done(number, tuple(map(int, functions)), tuple(parts[1:]))
            case ["RequestFailed", int(number), str(kind), str(message), str(hint), str(trace)]:
                return RequestFailed(number, kind, message, hint, trace)
            case ["SamplerCall", str(what), int(space), int(at), int(size)]:
                return SamplerCall(what, space, at, size)
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ResponseRefused(str(error)) from None
    raise ResponseRefused("an answer of no known kind")


def packed_value(found: object) -> tuple[Part, ...]:
    """Encode a value as a pickle and its out-of-band buffers.

    Args:
        found: Instance of a class that _allowed() accepts, such as Profile.
    """
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
    """Decode a profile that packed_value() encoded.

    Raises:
        ResponseRefused: The parts are not a valid profile.
    """
    return unpacked_value(parts, Profile)


@cache
def layout() -> str:
    """Return a digest of the classes that a packed Profile consists of, and their fields.

    Two versions of pyprof with different digests cannot exchange packed profiles.
    """
    from _blake2 import blake2b  # hashlib loads OpenSSL

    classes = [f"{kind.__module__}.{kind.__qualname__}{_members(kind)}" for kind in _allowed(Profile).values()]
    return blake2b("\n".join(sorted(classes)).encode(), digest_size=16).hexdigest()


def _members(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [f"{member.name}={member.value!r}" for member in kind]
    return [f"{name}: {of}" for name, of in getattr(kind, "__annotations__", {}).items()]


def unpacked_value(parts: Sequence[Part], kind: type[Value]) -> Value:
    """Decode a value that packed_value() encoded.

    Raises:
        ResponseRefused: The parts are not a valid value of this class.
    """
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
        raise ResponseRefused(str(error)) from None
    if not isinstance(found, kind):
        raise ResponseRefused(f"no {kind.__name__}")
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
