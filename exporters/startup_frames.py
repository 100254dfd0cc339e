"""Frames that start a program or thread, outside its own first function.

A frame belongs to the start if its name is known and all frames outside it belong to the start. Some names count only
directly inside such a frame (a C++ thread's std::invoke), some functions only because of what they call (the `main`
that Rust writes). The same applies to an interpreter's functions through which all calls of an application pass, for
example those of a web server.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pyprof.exporters.display_names import Level
from pyprof.model.application_code import is_application_file
from pyprof.model.function_costs import PASSED_ON, START_UP
from pyprof.model.profile import FrameKind, Profile

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
"""Names of functions that belong to the start of a program only directly inside another start frame."""
_LONGEST = 4096
"""Maximum length of a function name that is compared with the patterns for start frames."""

_LIBC_START = re.compile(r"(__libc_start_(main|call_main)|generic_start_main|_start_c$)")
_CALLS = re.compile(r"std::rt::lang_start|Py_(Bytes|Run)?Main$|pymain_main$|node::Start\b|runtime\.")
"""Functions whose callers belong to the start of a program if they call nothing else: the `main` of Rust, Python and
node.
"""

_FRAMEWORK = 0.8
"""Share of its value that a library's function must pass on to one call to count as part of the program's start: a web
server spends some itself.
"""

_C_LIBRARY = re.compile(r"(libc|libpthread|ld-linux[-\w]*|ld-musl[-\w]*)[-.\d]*\.so")

_SCRIPTS = {
    "threading.py": {"_bootstrap", "_bootstrap_inner", "run"},
    "runpy.py": {"_run_module_as_main", "_run_code", "_run_module_code", "run_path"},
    "<frozen runpy>": {"_run_module_as_main", "_run_code", "_run_module_code", "run_path"},
    "concurrent/futures/thread.py": {"_worker", "run"},
}
"""Python's functions that start programs: suffix of the file name -> last parts of the functions' names."""


def start_nodes(
    profile: Profile, parent: Sequence[int], levels: Sequence[Level | None], weight: Sequence[int]
) -> set[int]:
    """Return the nodes of a tree whose functions start a program or thread, outside its own first function.

    Args:
        parent: (nodes,) parents first.
        levels: (nodes,) None for the root.
        weight: (nodes,) value at or below each node.
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
    """Return the interpreter functions from a node on that lead to only one call, up to a library's last one."""
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
    """Return True for a frame that starts a program by its calls: a stripped program's `_start`, libc's `start_thread`
    without a symbol, and the `main` of Rust.
    """
    if level.kind != FrameKind.NATIVE or level.module < 0:
        return False
    module = profile.modules[level.module].name
    if re.search(r"[!+]0x[0-9a-f]+$", level.name):
        return bool(_C_LIBRARY.match(module)) or (outermost and all(_LIBC_START.match(other.name) for other in called))
    return level.name == "main" and all(_CALLS.match(other.name) for other in called)
