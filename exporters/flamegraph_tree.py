"""The data of the flame graph's page: a tree of functions in flat columns, and the source lines that it shows.

Addresses of one function under one caller become one node, for all mappings and processes. Nothing else is merged,
sorted or left out: each (thread, leaf) pair keeps its values, so that the page can group and hide threads with exact
totals.

The page can hide frames that start a program or thread.

A frame belongs to the start if its name is known as such and all frames outside it belong to the start. Some names
count only directly inside such a frame (a C++ thread's std::invoke), some functions only because of what they call (the
`main` that Rust writes). The same applies to an interpreter's functions through which all calls of an application pass,
for example those of a web server.

The page shows source lines near all lines that have samples (page.source.js).

A place is a line and the function that contains it. The places of a stack are a chain, stored in a prefix tree of
chains. Frames without source text have no place. With the chains the page counts any part of the samples by line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.display_names import Level, frame_functions, module_name, script_name
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.analysis.function_costs import PASSED_ON, START_UP, Function, are_application, is_application_file
from pyprof.model.analysis.line_costs import SourceText
from pyprof.model.integer_array_operations import distinct, numbered
from pyprof.model.marker_frames import UNSAMPLED
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, Profile

_ALWAYS = START_UP | {
    *("generic_start_main", "_start_c", "libc_start_main_stage2", "_rt0_amd64_linux", "_rt0_arm64_linux"),
    *("runtime.rt0_go", "runtime.rt0_go.abi0", "runtime.goexit", "runtime.goexit.abi0", "runtime.main"),
    *("runtime.mstart", "runtime.mstart.abi0", "runtime.mstart0", "runtime.mstart1"),
    *("execute_native_thread_routine", "g_thread_proxy", "ThreadJavaMain", "JavaMain"),
}  # fmt: skip

_RUST = re.compile(
    r"std::rt::lang_start|std::panic(king)?::|__rust_try|std::sys(_common)?::backtrace::__rust_begin_short_backtrace"
    r"|<?(std|core|alloc)::.*(thread_start|spawn_unchecked|::call_once)"
    r"|<.* as core::ops::function::Fn(Once|Mut)?<.*>>::call(_once|_mut)?$"
)
_CPP = re.compile(
    r"([^ (]+ )?std::(__\d+::)?(thread::_(State_impl|Invoker)|__invoke|invoke\b|__thread_(proxy|execute)|jthread::)"
)
_OTHER = re.compile(
    r"_?Py(Run|_Run|_Bytes)\w+$|py(main|run)_\w+$|run_(mod|eval_code_obj)\b|PyEval_EvalCode$|pythread_wrapper$|thread_run$"
    r"|(Java)?Thread::(call_run|run|thread_main_inner)\(|node::(Start|NodeMainInstance::Run)\b"
    r"|jni_(CallStaticVoidMethod$|invoke_static\b)|JavaCalls::call|thread_(native_)?entry\(|call_stub$"
    r"|java\.lang\.Thread\.run(With)?$|java\.util\.concurrent\.ThreadPoolExecutor(\$Worker\.run|\.runWorker)$"
    r"|java\.util\.concurrent\.ForkJoin(WorkerThread\.run|Pool\.(runWorker|scan))$"
)
_INSIDE = (_RUST, _CPP, _OTHER)
"""Patterns of names of functions that belong to the start of a program only directly inside another start frame."""
_LONGEST = 4096
"""Maximum length in characters of a function name that is compared with the patterns of functions that start a
program.
"""

_LIBC_START = re.compile(r"(__libc_start_(main|call_main)|generic_start_main|_start_c$)")
_CALLS = re.compile(r"std::rt::lang_start|Py_(Bytes|Run)?Main$|pymain_main$|node::Start\b|runtime\.")
"""Pattern of functions that prove by themselves that a caller named `main` belongs to the start of a program. Such a
`main` of Rust, Python or node calls nothing else.
"""

_FRAMEWORK = 0.8
"""Minimum share of a library function's time in one of its callees, for the function to count as a framework's.

The share is below 1 because a web server, for example, needs some time itself.
"""

_C_LIBRARY = re.compile(r"(libc|libpthread|ld-linux[-\w]*|ld-musl[-\w]*)[-.\d]*\.so")

_SCRIPTS = {
    "threading.py": {"_bootstrap", "_bootstrap_inner", "run"},
    "runpy.py": {"_run_module_as_main", "_run_code", "_run_module_code", "run_path"},
    "<frozen runpy>": {"_run_module_as_main", "_run_code", "_run_module_code", "run_path"},
    "concurrent/futures/thread.py": {"_worker", "run"},
}
"""Python's functions that start programs and threads: the end of the file's path, and the last parts of the functions'
names.
"""


def start_nodes(
    profile: Profile, parent: Sequence[int], levels: Sequence[Level | None], weight: Sequence[int]
) -> set[int]:
    """Return the nodes of a tree whose functions start a program or thread, that is, all outside the program's own
    first function.

    Args:
        parent: (nodes,) parent of each node; parents come first.
        levels: (nodes,) function of each node, None for the root.
        weight: (nodes,) value of the samples at or below each node.
    """
    found: set[int] = set()
    calls: defaultdict[int, list[int]] = defaultdict(list)
    for node in range(1, len(parent)):
        calls[parent[node]].append(node)
    todo = list(calls[0])
    while todo:
        node = todo.pop()
        level = levels[node]
        assert level is not None
        called = [other for child in calls[node] if (other := levels[child]) is not None]
        outermost = parent[node] == 0
        if _by_name(level, outermost) or (called and _by_calls(profile, level, outermost, called)):
            found.add(node)
            todo.extend(calls[node])
    for node in [other for each in (0, *found) for other in calls[each] if other not in found]:
        found.update(_framework(node, levels, calls, weight))
    return found


def _framework(
    node: int, levels: Sequence[Level | None], calls: Mapping[int, Sequence[int]], weight: Sequence[int]
) -> list[int]:
    """Return the nodes of a framework's functions through which nearly all time of a program passes. They begin at the
    given node and end at the last function of a library. The HTML page can show them as one row.
    """
    path, length = [], 0
    while (level := levels[node]) is not None and level.kind == FrameKind.INTERPRETER and calls[node]:
        child = max(calls[node], key=weight.__getitem__)
        is_library = bool(level.file) and not is_application_file(level.file or "")
        if weight[child] < (_FRAMEWORK if is_library else PASSED_ON) * weight[node]:
            break
        path.append(node)
        if is_library:
            length = len(path)
        node = child
    return path[:length]


def _by_name(level: Level, outermost: bool) -> bool:
    name = level.name
    if level.kind == FrameKind.INTERPRETER:
        last = name.rpartition(".")[2]
        return any((level.file or "").endswith(file) and last in names for file, names in _SCRIPTS.items())
    if level.kind not in (FrameKind.NATIVE, FrameKind.INLINE):
        return False
    if name.partition("@")[0].partition(".isra")[0] in _ALWAYS:
        return True
    return not outermost and len(name) <= _LONGEST and any(pattern.match(name) for pattern in _INSIDE)


def _by_calls(profile: Profile, level: Level, outermost: bool, called: Sequence[Level]) -> bool:
    """Return True if the functions that a frame calls show that it starts a program or thread. Such frames are a
    stripped program's `_start`, libc's `start_thread` without a name, and the `main` of Rust.
    """
    if level.kind != FrameKind.NATIVE or level.module < 0:
        return False
    module = profile.modules[level.module].name
    if re.search(r"[!+]0x[0-9a-f]+$", level.name):
        return bool(_C_LIBRARY.match(module)) or (outermost and all(_LIBC_START.match(other.name) for other in called))
    return level.name == "main" and all(_CALLS.match(other.name) for other in called)


_AROUND = 25
"""Number of source lines that the flame graph's page shows before and after a line with samples."""
_MAX_LETTERS = 1 << 20
"""Maximum number of characters in all source texts of a page. The files with the smallest values are left out."""
_WIDEST = 500
"""Maximum number of characters of a source line that the page shows."""

Place = tuple[int, int, int]
"""Place in source code: (file, line, function)."""


@dataclass(frozen=True, slots=True)
class PageSource:
    """The source lines that the flame graph's page shows, and for each stack the lines that it passes through.

    Attributes:
        document: Data for the JSON. `files` has entries [path, 1 if changed after the recording, parts as [first line,
            texts]]. The columns `file`, `line` and `frame` (of FlameTree) describe places, the columns `parent` (as a
            distance) and `place` describe chains.
        key: (nodes of the profile,) twice the number of each stack's chain, plus 1 if its innermost function is in the
            chain's last line.
    """

    document: dict[str, object]
    key: npt.NDArray[np.int64]


def make_page_source(profile: Profile, functions: Sequence[Function], options: ExportOptions) -> PageSource | None:
    """Return the source lines of a profile, or None if there is no text for any of them.

    Args:
        functions: The functions on the page.
    """
    numbers = {function: at for at, function in enumerate(functions)}
    files = {path: at for at, path in enumerate(options.sources)}
    rows: list[list[Place]] = []
    direct: list[bool] = []
    hits: defaultdict[int, set[int]] = defaultdict(set)
    for frame in profile.frames:
        row: list[Place | None] = []
        for function, level in frame_functions(profile, frame, options):
            at = files.get(level.file or "", -1)
            there = at >= 0 and 0 < level.line <= len(options.sources[level.file or ""].lines) and function in numbers
            row.append((at, level.line, numbers[function]) if there else None)
        rows.append([place for place in row if place is not None])
        direct.append(bool(row) and row[-1] is not None)
        for file, line, _ in rows[-1]:
            hits[file].add(line)
    shown = _excerpts(profile, options.sources, hits)
    if not shown:
        return None
    place = {at: number for number, at in enumerate(sorted({at for row in rows for at in row if at[0] in shown}))}
    chains = Tree()
    frame_of = profile.frame.tolist()
    numbered = [[place[at] for at in row if at in place] for row in rows]
    ends = [there and bool(row) and row[-1] in place for there, row in zip(direct, rows, strict=True)]
    used = distinct(profile.stack).tolist()
    found = np.array(rewrite(profile.parent.tolist(), lambda node: numbered[frame_of[node]], chains, used), np.int64)
    found = 2 * found + np.array([*ends, False])[profile.frame]
    order = {file: number for number, file in enumerate(shown)}
    document = {
        "files": list(shown.values()),
        "file": [order[file] for file, _, _ in place],
        "line": [line for _, line, _ in place],
        "frame": [frame for _, _, frame in place],
        "parent": [node - up for node, up in enumerate(chains.parent)],
        "place": chains.frame,
    }
    return PageSource(document, found)


def _excerpts(
    profile: Profile, texts: Mapping[str, SourceText], hits: Mapping[int, set[int]]
) -> dict[int, list[object]]:
    """Return the source lines of each file that the page shows, by the file's number, in the form of
    PageSource.document.
    """
    shown: dict[int, list[object]] = {}
    room = _MAX_LETTERS
    for at, (path, text) in enumerate(texts.items()):
        if not hits.get(at):
            continue
        parts: list[tuple[int, list[str]]] = []
        for line in sorted(hits[at]):
            end = parts[-1][0] + len(parts[-1][1]) if parts else 1  # the first line that is not shown yet
            first, last = max(line - _AROUND, 1), min(line + _AROUND, len(text.lines))
            if not parts or first > end:
                parts.append((first, []))
                end = first
            parts[-1][1].extend(_short(each) for each in text.lines[end - 1 : last])
        room -= sum(len(each) + 1 for _, lines in parts for each in lines)
        if room < 0:
            break
        changed = text.changed_ns > profile.start_ns + profile.duration_ns
        shown[at] = [path, int(changed), parts]
    return shown


def _short(line: str) -> str:
    line = line.rstrip().expandtabs(4)
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]}…"


FrameRow = tuple[str, str, int, FrameKind]
"""One entry of a flame graph's table of functions: (name, name of the module or of its group, index into
Profile.modules or -1, kind). The values are those of the function's first frame.
"""

CALLED, INLINED = 1, 2
"""Bits that say whether the function of a flame graph's node was called or inlined."""


@dataclass
class FlameTree:
    """The flat columns of data from which the page draws a flame graph.

    Attributes:
        frames: One entry for each function: name, module group, module index, kind.
        application: For each function, True if it belongs to the application (analysis/function_costs.py).
        parent: Parent of each node; parents come first, node 0 is the root.
        frame: Index into frames of each node, -1 for the root.
        how: CALLED, INLINED or both, for each node.
        start: Nodes that start programs and threads (flamegraph_tree.py).
        trust: Bit set of Trust values of each node.
        place: "file:line" of the heaviest address of each node, or "".
        places: Number of different values of "file:line" in each node.
        leaf: Node of each row. A row stands for a thread, a leaf node and a chain of source lines.
        thread: Thread of each row.
        values: One column of values for each value type.
        row: (samples,) int64, row of each sample of the profile.
        functions: Identity of each entry in frames.
        source: Source lines with their text, None if there are none.
        lines: Chain of source lines of each row, as in PageSource.key.
    """

    frames: list[FrameRow] = field(default_factory=list)
    application: list[bool] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [-1])
    frame: list[int] = field(default_factory=lambda: [-1])
    how: list[int] = field(default_factory=lambda: [0])
    start: set[int] = field(default_factory=set)
    trust: list[int] = field(default_factory=lambda: [0])
    place: list[str] = field(default_factory=lambda: [""])
    places: list[int] = field(default_factory=lambda: [0])
    leaf: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    values: list[list[int]] = field(default_factory=list)
    row: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    functions: list[Function] = field(default_factory=list)
    source: PageSource | None = None
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    """A function of a frame that is about to become a node of the flame graph's tree.

    Attributes:
        frame: Index into FlameTree.frames.
        level: Name and place of the function.
        trust: Trust of the frame.
        weight: Value of all samples at or below the frame's node.
    """

    frame: int
    level: Level
    trust: int
    weight: int


class _Builder:
    """A builder of a FlameTree. It stores more about a node than the columns of the tree have."""

    def __init__(self, tree: FlameTree) -> None:
        self.tree = tree
        self.levels: list[Level | None] = [None]
        self._children: dict[tuple[int, int], int] = {}
        self._best: list[int] = [0]
        self._places: list[set[str]] = [set()]

    def child(self, parent: int, row: _Row) -> int:
        """Return the node of a function below a parent in the flame graph's tree. A missing node is added. The
        function's values are added to the node.
        """
        tree = self.tree
        node = self._children.setdefault((parent, row.frame), len(tree.parent))
        if node == len(tree.parent):
            tree.parent.append(parent)
            tree.frame.append(row.frame)
            tree.how.append(0)
            tree.trust.append(0)
            tree.place.append("")
            self._best.append(-1)
            self._places.append(set())
            self.levels.append(row.level)
        tree.trust[node] |= 1 << row.trust
        tree.how[node] |= INLINED if row.level.kind == FrameKind.INLINE else CALLED
        place = _place(row.level)
        if place:
            self._places[node].add(place)
            if row.weight > self._best[node]:
                self._best[node], tree.place[node] = row.weight, place
        return node

    def places(self) -> list[int]:
        return [len(places) for places in self._places]


def build_flame_tree(profile: Profile, options: ExportOptions) -> FlameTree:
    """Build the flame graph's tree of a profile, without nodes that no sample reaches."""
    tree = FlameTree()
    builder = _Builder(tree)
    ids: dict[Function, int] = {}
    found: list[list[tuple[int, Level]] | None] = [None] * len(profile.frames)
    parent, frame_of = profile.parent.tolist(), profile.frame.tolist()
    totals = [(thread, leaf, values.tolist()) for thread, leaf, values in profile.totals()]
    weight, used = _weights(parent, totals)

    def rows(node: int) -> Iterator[_Row]:
        at = frame_of[node]
        frame = profile.frames[at]
        functions = found[at]
        if functions is None:
            functions = found[at] = _levels(tree, ids, profile, frame, options)
        for function, level in functions:
            yield _Row(function, level, frame.trust, weight[node])

    merged = rewrite(parent, rows, builder, (node for node in range(1, len(parent)) if used[node]))
    tree.places = builder.places()
    tree.source = make_page_source(profile, tree.functions, options) if options.sources else None
    _add_samples(tree, profile, np.array(merged, np.int64))
    rows_of_tree = zip(tree.thread, tree.leaf, zip(*tree.values, strict=True), strict=True)
    tree.start = start_nodes(profile, tree.parent, builder.levels, _weights(tree.parent, list(rows_of_tree))[0])
    return tree


def _weights(parent: list[int], totals: Iterable[tuple[int, int, Sequence[int]]]) -> tuple[list[int], list[bool]]:
    """Return two lists for the nodes of a stack tree: the primary value of the samples at or below each node, and
    whether there are any.
    """
    weight = [0] * len(parent)
    used = [False] * len(parent)
    for _, leaf, values in totals:
        weight[leaf] += abs(values[-1])
        used[leaf] = True
    for node in range(len(parent) - 1, 0, -1):
        if used[node]:
            weight[parent[node]] += weight[node]
            used[parent[node]] = True
    return weight, used


def _add_samples(tree: FlameTree, profile: Profile, merged: npt.NDArray[np.int64]) -> None:
    """Fill those columns of the flame graph's tree that describe samples.

    Args:
        merged: (nodes of the profile's tree,) node of the flame graph's tree that each became.
    """
    key = tree.source.key if tree.source else np.zeros(len(merged), np.int64)
    keys = int(key.max(initial=0)) + 1
    pairs = (profile.thread * np.int64(len(tree.parent)) + merged[profile.stack]) * keys + key[profile.stack]
    found, tree.row = numbered(pairs)
    tree.lines = (found % keys).tolist() if tree.source else []
    found //= keys
    tree.thread = (found // len(tree.parent)).tolist()
    tree.leaf = (found % len(tree.parent)).tolist()
    sums = np.zeros((len(found), len(profile.value_types)), np.int64)
    np.add.at(sums, tree.row, profile.values)
    tree.values = sums.T.tolist()


def _levels(
    tree: FlameTree, ids: dict[Function, int], profile: Profile, frame: Frame, options: ExportOptions
) -> list[tuple[int, Level]]:
    """Return for each function of a frame its index into tree.frames and its Level, outermost first."""
    found = []
    named = frame_functions(profile, frame, options)
    for (function, level), is_own in zip(named, are_application(profile, frame) or [False] * len(named), strict=True):
        at = ids.setdefault(function, len(ids))
        if at == len(tree.frames):
            group = module_name(profile, level.module, options) or script_name(level, options)
            group = group or ("[not sampled]" if frame.mark in UNSAMPLED else _GROUPS.get(level.kind, "[unknown]"))
            tree.functions.append(function)
            tree.frames.append((level.name, group, level.module, function.kind))
            tree.application.append(is_own)
        found.append((at, level))
    return found


_GROUPS = {FrameKind.KERNEL: "[kernel]", FrameKind.INTERPRETER: "[interpreter]", FrameKind.MARKER: "[cut short]"}
"""Names of the flame graph's color groups for frames that are in no module, by kind of frame."""


def _place(level: Level) -> str:
    if not level.file:
        return ""
    return f"{level.file}:{level.line}" if level.line else level.file
