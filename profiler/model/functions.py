"""The functions of a profile, the same wherever they were mapped, and what each cost.

A function is known by its name and its file: the build-id of its module, else its path. So one function of a library is
one, in however many processes it ran, under however many addresses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyprof.model.application import is_application_file, is_application_module, script_of
from pyprof.model.markers import MarkKind
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.records import dataclass

KERNEL = "[kernel]"

START_UP = frozenset({
    *("_start", "_dl_start_user", "__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main"),
    *("clone", "__clone", "clone3", "__clone3", "__clone_internal", "start_thread", "thread_start"),
    *("Thread._bootstrap", "Thread._bootstrap_inner", "_run_module_as_main", "_run_code"),
    *("Py_BytesMain", "Py_RunMain", "pymain_main", "pymain_run_python", "pymain_run_file", "pymain_run_module"),
})  # fmt: skip
"""What stands outside a program's or a thread's own first function, whatever the program does."""
_FIRST = frozenset({"main", "<module>", "main.main"})
_CYTHON_HELPERS = ("__Pyx", "__pyx_")
"""Prefixes of functions that Cython adds to a module; names of others lose theirs (symbolize/generated_names.py)."""
PASSED_ON = 0.95
"""A function that passes this share of its total on to one other function tells nothing that the other does not."""

MIN_SHARE = 0.02
"""An application's function with less of the time is not shown before those of libraries."""


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """where: build-id of the module, else its path; of an interpreter's function its script; "" where none is known."""

    where: str
    name: str
    kind: FrameKind


@dataclass(frozen=True, slots=True)
class Cost:
    """What a function cost, of one value of the profile. own: as the innermost one; total: somewhere on the stack, each
    sample counted once however often it recurs. module: what people call its file, "" if none is known. wraps: it
    passes PASSED_ON of its total on to one function, which is not less the application's. application: see
    model/application.py.
    """

    function: Function
    module: str
    own: int
    total: int
    wraps: bool = False
    application: bool = False

    @property
    def name(self) -> str:
        return self.function.name


@dataclass(frozen=True, slots=True)
class Costs:
    """value: the sum of all samples, stacks without any function included. functions: dearest own cost first."""

    value: int
    functions: tuple[Cost, ...]

    def by_own(self, count: int) -> list[Cost]:
        return [cost for cost in self.functions[:count] if cost.own > 0]

    def by_total(self, count: int) -> list[Cost]:
        """Return the functions with the largest totals, largest first.

        Functions that start every program are left out. Functions through which everything passes are used only to fill
        the list.
        """
        return sorted(self._telling(count, lambda cost: False), key=_by_total)

    def application_first(self, count: int) -> list[Cost]:
        """Return the same list with the application's functions first, unless they have hardly any time."""

        def is_later(cost: Cost) -> bool:
            return not cost.application or cost.total < MIN_SHARE * self.value

        return sorted(self._telling(count, is_later), key=lambda cost: (is_later(cost), *_by_total(cost)))

    def _telling(self, count: int, is_later: Callable[[Cost], bool]) -> list[Cost]:
        found = [cost for cost in self.functions if cost.total > 0 and cost.name not in START_UP]
        found.sort(key=lambda cost: (self._is_trunk(cost), is_later(cost), *_by_total(cost)))
        return found[:count]

    def _is_trunk(self, cost: Cost) -> int:
        """Return 2 for a function that only calls another one, 1 for one through which everything passes, else 0."""
        is_first = cost.name in _FIRST and not cost.own
        has_all = cost.total >= PASSED_ON * self.value and cost.own < (1 - PASSED_ON) * self.value
        return 2 if cost.wraps else int(is_first or has_all)


def _by_total(cost: Cost) -> tuple[int, bool, int, Function]:
    return -cost.total, cost.wraps, -cost.own, cost.function


def are_application(profile: Profile, frame: Frame) -> list[bool]:
    """Return for each function of functions_of() whether it belongs to the application."""
    if frame.kind == FrameKind.MARKER:
        return []
    files = [line.file or "" for line in reversed(frame.lines)] or [""]
    if frame.kind == FrameKind.INTERPRETER:
        return [is_application_file(file) for file in files]
    if script := script_of(frame.lines[-1].function if frame.lines else ""):
        return [is_application_file(script)] * len(files)
    path = profile.modules[frame.module].path if frame.module >= 0 else ""
    is_own = frame.kind != FrameKind.KERNEL and is_application_module(path)
    names = [line.function for line in reversed(frame.lines)] or [""]
    return [
        is_own
        and (not file or is_application_file(file))
        and not name.startswith(_CYTHON_HELPERS)
        and not name.endswith("@plt")
        for file, name in zip(files, names, strict=True)
    ]


def functions_of(profile: Profile, frame: Frame) -> list[tuple[Function, str]]:
    """The functions of a frame with their modules' names, outermost first: the real one, then what was inlined into it.
    None of a marker.
    """
    if frame.kind == FrameKind.MARKER:
        return []
    info = profile.modules[frame.module] if frame.module >= 0 else None
    where, module = (info.build_id or info.path, info.name) if info else ("", "")
    if frame.kind == FrameKind.KERNEL:
        where = module = KERNEL
    if frame.kind == FrameKind.INTERPRETER and frame.lines and frame.lines[0].file:
        where = frame.lines[0].file
        module = where.rsplit("/", 1)[-1]
    names = [line.function or line.system_name for line in reversed(frame.lines)] or [frame.title]
    kind = FrameKind.NATIVE if frame.kind == FrameKind.INLINE else frame.kind
    return [(Function(where, name or "[unknown]", kind), module) for name in names]


def costs(profile: Profile, column: int = -1) -> Costs:
    """Of all functions. column: which of the profile's values; the last is the primary one."""
    own = np.zeros(len(profile.parent), np.int64)
    np.add.at(own, profile.stack, profile.values[:, column])
    ids: dict[Function, int] = {}
    modules: list[str] = []
    application: list[bool] = []
    rows: list[list[int]] = []
    for frame in profile.frames:
        row = []
        for (function, module), is_own in zip(
            functions_of(profile, frame), are_application(profile, frame), strict=True
        ):
            at = ids.setdefault(function, len(ids))
            if at == len(modules):
                modules.append(module)
                application.append(is_own)
            row.append(at)
        rows.append(row)
    sums = TreeSums(profile, own.tolist(), rows, len(ids))
    self_of, total_of = sums.own, sums.total
    # An application's function that only calls a library tells more than the library.
    wraps = [inner >= 0 and application[inner] >= application[outer] for outer, inner in enumerate(sums.wrapped())]
    found = [
        Cost(function, modules[at], self_of[at], total_of[at], wraps[at], application[at])
        for function, at in ids.items()
        if self_of[at] or total_of[at]
    ]
    found.sort(key=lambda cost: (-cost.own, -cost.total, cost.function))
    return Costs(int(profile.values[:, column].sum()), tuple(found))


def lock_costs(profile: Profile) -> list[tuple[str, int]]:
    """What was waited for each lock, longest first: of a recording that groups waits by lock, else nothing."""
    locks = [frame.mark is not None and frame.mark.kind is MarkKind.LOCK for frame in profile.frames]
    if not any(locks):
        return []
    sums = np.zeros(len(profile.parent), np.int64)
    np.add.at(sums, profile.stack, profile.values[:, -1])
    below, frame_of = sums.tolist(), profile.frame.tolist()
    found: dict[str, int] = {}
    for node, up in reversed(list(enumerate(profile.parent.tolist()))):
        if node and locks[frame_of[node]]:
            title = profile.frames[frame_of[node]].title
            found[title] = found.get(title, 0) + below[node]
        elif node:
            below[up] += below[node]
    return sorted(((title, value) for title, value in found.items() if value), key=lambda row: (-row[1], row[0]))


class TreeSums:
    """The own cost and the total cost of each function of a tree."""

    def __init__(self, profile: Profile, own: list[int], rows: list[list[int]], count: int) -> None:
        """own: the value of each node alone. rows: the functions of each frame, outermost first."""
        rows = [*rows, []]  # the last one of the root, which is no frame
        self._parent, self._rows = profile.parent.tolist(), [rows[frame] for frame in profile.frame.tolist()]
        self.own, self.total = [0] * count, [0] * count
        self._dearest = [(0, 0)] * count  # (value, node) of the dearest place where it does not recur
        self._inclusive = list(own)
        for node in range(len(own) - 1, 0, -1):
            self._inclusive[self._parent[node]] += self._inclusive[node]
        self._walk(own)

    def _walk(self, own: list[int]) -> None:
        children: list[list[int]] = [[] for _ in own]
        for node in range(len(own) - 1, 0, -1):
            children[self._parent[node]].append(node)
        depth = [0] * len(self.own)
        todo = children[0]
        while todo:
            node = todo.pop()
            if node < 0:  # all below it is done
                for function in self._rows[~node]:
                    depth[function] -= 1
                continue
            row = self._rows[node]
            for function in row:
                if not depth[function]:
                    self.total[function] += self._inclusive[node]
                    self._dearest[function] = max(self._dearest[function], (self._inclusive[node], -node))
                depth[function] += 1
            if row:
                self.own[row[-1]] += own[node]
            todo.append(~node)
            todo.extend(children[node])

    def wrapped(self) -> list[int]:
        """Return for each function the one to which it passes PASSED_ON of its total, -1 for none."""
        heaviest = [0] * len(self._parent)
        for node in range(len(self._parent) - 1, 0, -1):
            parent = self._parent[node]
            if not heaviest[parent] or self._inclusive[node] >= self._inclusive[heaviest[parent]]:
                heaviest[parent] = node
        return [self._wrapped(function, -at, heaviest) if at else -1 for function, (_, at) in enumerate(self._dearest)]

    def _wrapped(self, function: int, node: int, heaviest: list[int]) -> int:
        first, least = node, PASSED_ON * self._inclusive[node]
        row = self._rows[node]
        called = row[row.index(function) + 1 :]
        while all(each == function for each in called):  # recursion and markers are no other function
            node = heaviest[node]
            if not node or self._inclusive[node] < least:
                return -1
            called = self._rows[node]
        other = next(each for each in called if each != function)
        is_inner = -self._dearest[other][1] >= first  # of two that call each other only the outer one wraps
        return other if is_inner and self.total[other] >= PASSED_ON * self.total[function] else -1
