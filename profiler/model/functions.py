"""The functions of a profile, the same wherever they were mapped, and what each cost.

A function is known by its name and its file: the build-id of its module, else its path. So one function of a library is
one, in however many processes it ran, under however many addresses.
"""

from __future__ import annotations

import numpy as np

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


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """where: build-id of the module, else its path; of an interpreter's function its script; "" where none is known."""

    where: str
    name: str
    kind: FrameKind


@dataclass(frozen=True, slots=True)
class Cost:
    """What a function cost, of one value of the profile. own: as the innermost one; total: somewhere on the stack, each
    sample counted once however often it recurs. module: what people call its file, "" if none is known. wraps: some
    function that it calls costs just as much in total: it does nothing but call that.
    """

    function: Function
    module: str
    own: int
    total: int
    wraps: bool = False

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
        """Without what every program starts with; its first function, and what only calls another one, come in where
        there is room.
        """
        found = [cost for cost in self.functions if cost.total > 0 and cost.name not in START_UP]
        found.sort(
            key=lambda cost: (
                cost.wraps or (cost.name in _FIRST and not cost.own),
                -cost.total,
                -cost.own,
                cost.function,
            )
        )
        return sorted(found[:count], key=lambda cost: (-cost.total, cost.wraps, -cost.own, cost.function))


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
    rows: list[list[int]] = []
    for frame in profile.frames:
        row = []
        for function, module in functions_of(profile, frame):
            at = ids.setdefault(function, len(ids))
            if at == len(modules):
                modules.append(module)
            row.append(at)
        rows.append(row)
    sums = TreeSums(profile, own.tolist(), rows, len(ids))
    self_of, total_of, wraps = sums.own, sums.total, sums.wraps()
    found = [
        Cost(function, modules[at], self_of[at], total_of[at], wraps[at])
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
    """own, total: of each function; wraps(): see Cost."""

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

    def wraps(self) -> list[bool]:
        """Which functions have another one with the same total below them."""
        found = [False] * len(self.total)
        done = [-1] * len(self._parent)
        places = [(-at, function) for function, (_, at) in enumerate(self._dearest) if at]
        places.sort(key=lambda place: (place[0], self._rows[place[0]].index(place[1])))
        for at, function in reversed(places):  # innermost first
            node, total = at, self.total[function]
            while node > 0 and self._inclusive[node] <= total and done[node] != total:
                done[node] = total
                row = self._rows[node]
                for outer in row[: row.index(function)] if node == at else row:
                    found[outer] |= outer != function and self.total[outer] == total
                node = self._parent[node]
        return found
