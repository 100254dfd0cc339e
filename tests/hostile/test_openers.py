"""Tests of the source code: file names from a target, a file or a server are opened in one place.

objfile/untrusted_file_access.py opens foreign names, and the names that the kernel or the user provides.
objfile/byte_source.py (open_regular) opens names from the user, and exporters/output_file.py writes. All other code
opens trusted names only: constants, names below /proc or /sys with numbers, and descriptors that one of these modules
has opened. ALLOWED lists each exception with its reason.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("profiler", "collectors", "interpreters", "unwind", "exporters", "start")
OPENERS = {
    "profiler/objfile/untrusted_file_access.py",
    "profiler/objfile/byte_source.py",
    "exporters/output_file.py",
}
ALLOWED = {
    ("profiler/objfile/symbol_servers.py", "os.open"): "a nameless file in the cache of this user",
    ("profiler/cli/main.py", "open"): "/dev/null by its constant",
    ("profiler/cli/main.py", "os.open"): "/dev/null by its constant",
    ("profiler/symbolize/kernel_symbols.py", "open"): "/proc/kallsyms, or the file that a test gives",
    ("collectors/linux/procfs.py", "os.open"): "names below the descriptor of /proc/PID",
    ("collectors/offcpu/wall_clock_collector.py", "open"): "/proc/TID/stack and wchan of a number",
    ("collectors/targets/attach_checks.py", "open"): "/proc/sys by names of ours",
    ("collectors/gdb_stub/target_modules.py", "open"): "a new file in a private folder, O_EXCL",
    ("collectors/bpf/bpf_object.py", "open"): "/sys/kernel/btf/vmlinux by its constant",
    ("collectors/bpf/process_ends.py", ".read_bytes"): "the object that is installed with the package",
    ("collectors/bpf/kernel_program.py", ".read_bytes"): "the object that is installed with the package",
    ("unwind/native_unwinder.py", ".read_bytes"): "the object and its manifest, which are installed with the package",
    ("unwind/native_unwinder.py", "ctypes.CDLL"): "that object",
    ("profiler/recording/untrusted_recording.py", ".write_bytes"): "a copy in a new private folder",
    ("profiler/recording/untrusted_recording.py", "sqlite3.connect"): "that copy",
    (
        "profiler/recording/writer.py",
        "sqlite3.connect",
    ): "the output, where nobody else gives names",
    ("profiler/objfile/breakpad_symbol_search.py", "lzma.LZMAFile"): "a stream that is open",
    ("profiler/fleet/server/query/query_api.py", "open"): "a file that was just made in a folder of its own",
    ("profiler/fleet/cli/demo_fleet.py", "open"): "a descriptor that was just made, in a folder of its own",
    ("profiler/fleet/server/http_app.py", ".read_bytes"): "the page's own files",
    (
        "profiler/fleet/server/store/local_database.py",
        "os.open",
    ): "the lock of the database, in the folder of the server",
    ("profiler/fleet/agent/control_socket.py", "os.open"): "the spool's folder, for its path only",
    ("profiler/fleet/cli/agent_administration.py", "open"): "a segment of the spool",
    ("profiler/fleet/agent/push_sink_queues.py", "open"): "a segment of the spool, where nobody else gives names",
    ("start/__init__.py", "open"): "lists of installed distributions, before the package is imported",
}
"""The reason for each exception, by (file, call)."""
BY_NAME = {
    "os": {"open"},
    "io": {"open", "open_code", "FileIO"},
    "gzip": {"open", "GzipFile"},
    "bz2": {"open", "BZ2File"},
    "lzma": {"open", "LZMAFile"},
    "codecs": {"open"},
    "tokenize": {"open"},
    "tarfile": {"open", "TarFile"},
    "zipfile": {"ZipFile"},
    "sqlite3": {"connect"},
    "shelve": {"open"},
    "dbm": {"open"},
    "linecache": {"getline", "getlines", "updatecache"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "ctypes": {"CDLL", "PyDLL"},
    "np": {"fromfile", "memmap", "load", "loadtxt", "genfromtxt", "save", "savez"},
    "numpy": {"fromfile", "memmap", "load", "loadtxt", "genfromtxt", "save", "savez"},
}
"""Further functions that open a file by name, by module. mmap and os.fdopen take descriptors."""


def called(call: ast.Call) -> str:
    """Return the name of the function with which a call opens a file, or ""."""
    match call.func:
        case ast.Name("open"):
            return "open"
        case ast.Attribute(ast.Name(module), name) if name in BY_NAME.get(module, ()):
            return f"{module}.{name}"
        case ast.Attribute(_, "read_bytes" | "read_text" | "write_bytes" | "write_text" as name):
            return f".{name}"
        case ast.Attribute(ast.Call(ast.Name("Path")) | ast.Name("path" | "place" | "name"), "open"):
            return ".open"
    return ""


def imported(node: ast.ImportFrom) -> list[str]:
    """Return the imports of functions that open files and would be called without their module's name."""
    return [f"from {node.module} import {each.name}" for each in node.names if each.name in BY_NAME[node.module or ""]]


def is_ours(name: ast.expr) -> bool:
    """Return True for trusted names: constants, kernel folders with numbers, and results of open_file()."""
    match name:
        case ast.Constant(str(text)):
            return text.startswith(("/proc/", "/sys/", "/dev/null", "/dev/tty")) or text == ":memory:"
        case ast.Constant(None) | ast.Call(ast.Attribute(ast.Name("io"), "BytesIO")):
            return True
        case ast.JoinedStr([ast.Constant(str(text)), *rest]):
            holes = [part.value for part in rest if isinstance(part, ast.FormattedValue)]
            return text.startswith("/proc/") and all(
                isinstance(hole, ast.Name) and is_number(hole.id) for hole in holes
            )
        case ast.Call(ast.Name(opener) | ast.Attribute(_, opener)):
            return opener in ("open_regular", "open_file", "reopen", "open", "kernel_symbols")
    return isinstance(name, ast.Name) and name.id in ("fd", "packed_fd")


def is_number(name: str) -> bool:
    return name in ("pid", "tid", "fd", "found", "number")


def openings(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, function, whether the call is allowed everywhere) for each call that opens a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (by := called(node)):
            ours = bool(node.args) and not by.startswith(".") and is_ours(node.args[0])
            yield node.lineno, by, ours or any(word.arg == "fileobj" for word in node.keywords)
        if isinstance(node, ast.ImportFrom) and node.module in BY_NAME:
            for by in imported(node):
                yield node.lineno, by, False


def files() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_foreign_names_have_one_opener() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    wrong, looked_at = [], 0
    for name, source in files():
        for line, by, ours in openings(source) if name not in OPENERS else ():
            looked_at += 1
            seen[name, by] += not ours
            if not ours and (name, by) not in ALLOWED:
                wrong.append(f"{name}:{line}: {by}")
    assert not wrong, "opened by a name that is perhaps foreign: use objfile/untrusted_file_access.py"
    assert looked_at > 30
    assert {key for key in ALLOWED if not seen[key]} == set(), "exceptions that nobody needs"


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "os.open(name, os.O_RDONLY)",
        'open(f"/proc/{pid}/root{name}")',
        'open(f"/proc/{name}")',
        'open("/etc/passwd")',
        "Path(module.path).read_bytes()",
        "open(self.name, 'rb')",
        "Path(module.path).read_text()",
        "Path(module.path).open()",
        "io.open(path)",
        "gzip.open(path)",
        "gzip.GzipFile(path)",
        "lzma.LZMAFile(path)",
        "sqlite3.connect(path)",
        "zipfile.ZipFile(path)",
        "np.memmap(path)",
        "shutil.copyfile(path, here)",
        "ctypes.CDLL(module.path)",
        "linecache.getline(path, 1)",
        "from gzip import open as unpacked",
    ],
)
def test_mutants_are_seen(source: str) -> None:
    assert [ours for _, _, ours in openings(source)] == [False]


@pytest.mark.parametrize(
    "source",
    [
        'open(f"/proc/{pid}/stat", "rb")',
        "open(fd)",
        'open("/sys/devices/online")',
        "gzip.GzipFile(fileobj=stream)",
        'sqlite3.connect(":memory:")',
    ],
)
def test_names_of_ours_are_allowed(source: str) -> None:
    assert [ours for _, _, ours in openings(source)] == [True]
