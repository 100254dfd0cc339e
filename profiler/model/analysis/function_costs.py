"""The functions of a profile and their costs, independent of where they were mapped, and which of them are application
code.

A function is identified by its name and its file: the build id of its module, or else its path. So a library function
is one function, whatever processes and addresses it ran at.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.marker_frames import MarkKind
from pyprof.model.profile import Frame, FrameKind, Profile

_SYSTEM_LIBRARY = re.compile(r"/(?:usr/)?lib(?:32|64|x32)?/.*\.so(?:\.[\d.]*)?(?: \(deleted\))?", re.DOTALL)
_C_LIBRARY = re.compile(
    r"(?:lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+|c\+\+|c\+\+abi)|ld-(?:linux|musl)[-\w]*)[-.\d]*\.so.*"
)
"""File names of C and C++ runtime libraries.

Profiles of other profilers have file names without folders, so the pattern uses the name alone.
"""
_RUNTIME = re.compile(
    r"(?:lib)?(?:python|pypy|perl|php|node|lua|luajit|java|jvm|dotnet|coreclr|beam)"
    r"(?:-?(?:fpm|cgi|jit))?[-.\d]*t?d?m?(?:\.smp)?(?:\.so.*)?"
)
"""File names of language runtimes: programs and libraries that run other code."""
_PACKAGE = re.compile(
    r"^/usr/(?:local/)?lib(?:64)?/|(?:^|/)(?:site-packages|dist-packages|node_modules|gems|\.cargo/registry|go/pkg/mod"
    r"|usr/local/go/src|usr/include|rust/deps|include/python\d[\d.]*t?|rustc/[0-9a-f]+/library|lib(?:64)?/(?:python|pypy|perl)\d[\d.]*t?"
    r"|lib(?:64)?/\w{1,64}/\d+\.\d[\d.]*|lib_pypy|lib-python|python\d+\.zip|share/(?:perl|php|lua)[\d.]*)/"
)
"""Pattern of paths that contain a folder of installed packages or of a standard library."""
_OF_EACH_PACKAGE = frozenset({"__init__.py", "__main__.py", "index.js", "index.ts", "mod.rs"})
"""Names of source files that occur in many packages, such as __init__.py. They are shown with their folder."""
SCRIPT = "JS:"
"""Prefix of the names of script functions that V8 compiled."""
_SCRIPT = re.compile(r"JS:[^\n]* (?:file://)?([^ \n]+?):\d+(?::\d+)?")
"""Pattern of V8's name for a function of a script. It contains the file, the line and the column."""
_CLASS_LIBRARY = ("java.", "javax.", "jdk.", "sun.", "com.sun.")
"""Packages of Java's class library and of the JDK's tools."""
_TYPED_IN = ("<stdin>", "<ipython-input", "<console>")
"""Names of files that stand for code which a user typed in.

"<string>" is not among them, because libraries generate most of such code (named tuples, data classes).
"""
_LONGEST = 4096


def is_application_file(path: str) -> bool:
    """Return True if a source file belongs neither to a standard library nor to an installed package."""
    if not path or path.startswith(("node:", "internal/")):
        return False
    if path.startswith("<"):
        return path.startswith(_TYPED_IN)
    return not _PACKAGE.search(path[:_LONGEST])


def is_of_class_library(file: str, name: str) -> bool:
    """Return True for a function of Java's class library, whose source files have no folders."""
    return file.endswith(".java") and "/" not in file and name.startswith(_CLASS_LIBRARY)


def script_of(name: str) -> str:
    """Return the source file in V8's name of a script function, "" for other names."""
    found = _SCRIPT.fullmatch(name) if name.startswith(SCRIPT) and len(name) <= _LONGEST else None
    return found[1] if found else ""


def script_title(path: str) -> str:
    """Return the name that a page shows for a source file: its last part, with its folder's name if each package has a
    file of that name.
    """
    folder, _, name = path.rpartition("/")
    return f"{folder.rpartition('/')[2]}/{name}" if folder and name in _OF_EACH_PACKAGE else name


def is_application_module(path: str) -> bool:
    """Return True if an object file is neither a system library, an installed package, a runtime nor the kernel."""
    if not path or path.startswith("["):
        return False
    path = path[:_LONGEST]
    name = path.rsplit("/", 1)[-1]
    if _SYSTEM_LIBRARY.fullmatch(path) or _C_LIBRARY.fullmatch(name) or _RUNTIME.fullmatch(name):
        return False
    return not _PACKAGE.search(path.removeprefix("/usr"))  # programs also lie in /usr/lib


KERNEL = "[kernel]"
RUN_TIME_CODE = "[jit] "
"""Prefix of the paths of modules that stand for code which a process generated while it ran (JIT code)."""
_COMPILED_CODE = frozenset(RUN_TIME_CODE + label for label in ("gdb", "jitdump", "libunwind", "perf map"))
"""Paths of modules that stand for JIT code. It counts as the application's code, because a compiler in the process made
it from the application.
"""

START_UP = frozenset({
    *("_start", "_dl_start_user", "__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main"),
    *("clone", "__clone", "clone3", "__clone3", "__clone_internal", "start_thread", "thread_start"),
    *("Thread._bootstrap", "Thread._bootstrap_inner", "_run_module_as_main", "_run_code"),
    *("Py_BytesMain", "Py_RunMain", "pymain_main", "pymain_run_python", "pymain_run_file", "pymain_run_module"),
})  # fmt: skip
"""Functions that start a program or a thread and lie outside of its first function, in any program."""
_FIRST = frozenset({"main", "<module>", "main.main"})
_CYTHON_HELPERS = ("__Pyx", "__pyx_")
"""Prefixes of the helper functions that Cython adds to a module."""
PASSED_ON = 0.95
"""Limit for a function that only passes its cost on: one callee has more than this fraction of its total cost. The cost
of such a function is not informative.
"""

_NAMELESS, _MAX_ADDRESS = re.compile(r"[!+]0x[0-9a-f]+$"), 32
"""Pattern of the name that a function without a symbol gets ("dash!0x6110"), and the maximum number of characters at a
name's end in which it is searched.
"""

MIN_SHARE = 0.02
"""Minimum share of the time with which a function of the application is listed before functions of libraries."""


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A function of a profile, identified by its module or script, its name and its kind.

    Attributes:
        where: Build id of the module, else its path; for an interpreter function its script; "" if unknown.
        name: Name of the function.
        kind: Kind of its frames.
    """

    where: str
    name: str
    kind: FrameKind


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a function, by one of the profile's values.

    Attributes:
        function: The function.
        module: Name of its file as users call it, "" if unknown.
        own: Cost as the innermost function.
        total: Cost anywhere on the stack. A sample counts once, even if the function recurs.
        wraps: True if one callee has at least PASSED_ON of its total cost. That callee is a named function of the
            application if this one is.
        application: True if it belongs to the application, not to a library or a runtime.
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
    """The costs of all functions of a profile.

    Attributes:
        value: Sum of the values of all samples, including stacks without a function.
        functions: Costs, most expensive own cost first.
    """

    value: int
    functions: tuple[Cost, ...]

    def by_own(self, count: int) -> list[Cost]:
        return [cost for cost in self.functions[:count] if cost.own > 0]

    def by_total(self, count: int) -> list[Cost]:
        """Return the functions with the largest total costs, largest first.

        Functions that start every program are left out. Functions through which nearly all samples pass appear only if
        there are fewer than `count` others.
        """
        return sorted(self._telling(count, lambda cost: False), key=_by_total)

    def application_first(self, count: int) -> list[Cost]:
        """Return the functions with the largest total costs, those of the application before those of libraries.

        A function of the application with less than MIN_SHARE of the profile counts as one of a library.
        """
        return sorted(self._telling(count, self._is_later), key=lambda cost: (self._is_later(cost), *_by_total(cost)))

    def rank_by_total(self, cost: Cost) -> tuple[int, bool]:
        """Return a sort key for functions with large total costs. Functions through which nearly all samples pass come
        last, because their cost says little.
        """
        return self._is_trunk(cost), self._is_later(cost)

    def _is_later(self, cost: Cost) -> bool:
        return not _is_telling(cost.function, cost.application) or cost.total < MIN_SHARE * self.value

    def _telling(self, count: int, is_later: Callable[[Cost], bool]) -> list[Cost]:
        found = [cost for cost in self.functions if cost.total > 0 and cost.name not in START_UP]
        found.sort(key=lambda cost: (self._is_trunk(cost), is_later(cost), *_by_total(cost)))
        return found[:count]

    def _is_trunk(self, cost: Cost) -> int:
        """Return 2 for a function that passes nearly all its cost on to one callee, 1 for one through which nearly all
        samples of the profile pass, else 0.
        """
        is_first = cost.name in _FIRST and not cost.own
        has_all = cost.total >= PASSED_ON * self.value and cost.own < (1 - PASSED_ON) * self.value
        return 2 if cost.wraps else int(is_first or has_all)


def _is_telling(function: Function, application: bool) -> bool:
    return application and not _NAMELESS.search(function.name[-_MAX_ADDRESS:])


def _by_total(cost: Cost) -> tuple[int, bool, int, Function]:
    return -cost.total, cost.wraps, -cost.own, cost.function


def is_of_runtime(profile: Profile, frame: Frame) -> bool:
    """Return True for a function of a language that an interpreter or a just-in-time compiler runs.

    Machine code that was made at run time counts if its source file is known: Java and JavaScript, but no stubs.
    """
    if frame.kind == FrameKind.INTERPRETER:
        return True
    if frame.module >= 0 and profile.modules[frame.module].path.startswith(RUN_TIME_CODE):
        return any(line.file for line in frame.lines)
    return any(line.function.startswith(SCRIPT) for line in frame.lines)


def kind_of(profile: Profile, frame: Frame) -> FrameKind:
    """Return the kind that a frame's functions have. It is INTERPRETER for each function of a language that an
    interpreter or a JIT compiler runs.
    """
    if is_of_runtime(profile, frame):
        return FrameKind.INTERPRETER
    return FrameKind.NATIVE if frame.kind == FrameKind.INLINE else frame.kind


def are_application(profile: Profile, frame: Frame) -> list[bool]:
    """Return for each function of a frame, outermost first, whether it belongs to the application."""
    if frame.kind == FrameKind.MARKER:
        return []
    files = [line.file or "" for line in reversed(frame.lines)] or [""]
    names = [line.function for line in reversed(frame.lines)] or [""]
    if script := script_of(frame.lines[-1].function if frame.lines else ""):
        return [is_application_file(script)] * len(files)
    if is_of_runtime(profile, frame):
        found = zip(files, names, strict=True)
        return [is_application_file(file) and not is_of_class_library(file, name) for file, name in found]
    path = profile.modules[frame.module].path if frame.module >= 0 else ""
    is_own = frame.kind != FrameKind.KERNEL and (is_application_module(path) or path in _COMPILED_CODE)
    return [
        is_own
        and (not file or is_application_file(file))
        and not name.startswith(_CYTHON_HELPERS)
        and not name.endswith("@plt")
        for file, name in zip(files, names, strict=True)
    ]


def functions_of(profile: Profile, frame: Frame) -> list[tuple[Function, str]]:
    """Return the functions of a frame with the names of their modules, outermost first.

    The first one is the real function, then come those inlined into it. The list is empty for a marker.
    """
    if frame.kind == FrameKind.MARKER:
        return []
    info = profile.modules[frame.module] if frame.module >= 0 else None
    where, module = (info.build_id or info.path, info.name) if info else ("", "")
    if frame.kind == FrameKind.KERNEL:
        where = module = KERNEL
    kind = kind_of(profile, frame)
    found = []
    for line in reversed(frame.lines):
        is_script = kind == FrameKind.INTERPRETER and line.file
        place = (line.file or "", script_title(line.file or "")) if is_script else (where, module)
        found.append((Function(place[0], line.function or line.system_name or "[unknown]", kind), place[1]))
    return found or [(Function(where, frame.title or "[unknown]", kind), module)]


def costs(profile: Profile, column: int = -1) -> Costs:
    """Compute the costs of all functions of a profile.

    Args:
        profile: The profile.
        column: Index of the profile's value that is summed; the last one is the primary value.
    """
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
    # an application's function that only calls a library, or one without a name, is more informative than what it calls
    telling = [_is_telling(function, is_own) for function, is_own in zip(ids, application, strict=True)]
    wraps = [inner >= 0 and telling[inner] >= telling[outer] for outer, inner in enumerate(sums.wrapped())]
    found = [
        Cost(function, modules[at], self_of[at], total_of[at], wraps[at], application[at])
        for function, at in ids.items()
        if self_of[at] or total_of[at]
    ]
    found.sort(key=lambda cost: (-cost.own, -cost.total, cost.function))
    return Costs(int(profile.values[:, column].sum()), tuple(found))


def lock_costs(profile: Profile) -> list[tuple[str, int]]:
    """Return for each lock the total time that threads waited for it, longest first.

    The result is empty if the recording does not group waits by lock.
    """
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


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """The total cost of all processes with one name.

    Attributes:
        name: Name of the processes.
        pids: Their pids, ascending.
        value: The primary value of their samples, such as nanoseconds.
    """

    name: str
    pids: tuple[int, ...]
    value: int


def process_costs(profile: Profile) -> list[ProcessCost]:
    """Return the costs of processes by name, largest first."""
    sums = np.zeros(len(profile.threads), np.int64)
    np.add.at(sums, profile.thread, profile.values[:, -1])
    pids: dict[str, set[int]] = {}
    values: dict[str, int] = {}
    for thread, value in zip(profile.threads, sums.tolist(), strict=True):
        pids.setdefault(thread.process, set()).add(thread.pid)
        values[thread.process] = values.get(thread.process, 0) + value
    found = [ProcessCost(name, tuple(sorted(pids[name])), value) for name, value in values.items() if value]
    return sorted(found, key=lambda cost: (-cost.value, cost.name))


class TreeSums:
    """Sums over a profile's stack tree: the own cost and the total cost of each function."""

    def __init__(self, profile: Profile, own: list[int], rows: list[list[int]], count: int) -> None:
        """Compute the cost of each function over the stack tree of a profile.

        Args:
            profile: The profile.
            own: (nodes,) Value of each node alone.
            rows: For each frame of the profile the numbers of its functions, outermost first. It has several if
                functions are inlined.
            count: Number of functions.
        """
        rows = [*rows, []]  # the last row is that of the root, which is no frame
        self._parent, self._rows = profile.parent.tolist(), [rows[frame] for frame in profile.frame.tolist()]
        self.own, self.total = [0] * count, [0] * count
        self._dearest = [(0, 0)] * count  # (value, node) of the most expensive place where it does not recur
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
            if node < 0:  # all nodes below it are done
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
        """Return for each function the number of the callee to which it passes nearly all of its cost (at least
        PASSED_ON), -1 if there is none.
        """
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
        is_inner = -self._dearest[other][1] >= first  # of two functions that call each other, only the outer one wraps
        return other if is_inner and self.total[other] >= PASSED_ON * self.total[function] else -1
