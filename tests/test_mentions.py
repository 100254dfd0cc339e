"""Tests that files and functions exist that comments, docstrings and documentation mention."""

from __future__ import annotations

import ast
import builtins
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from tests import syntax

ROOT = Path(__file__).parent.parent
FOLDERS = ("profiler", "unwind", "collectors", "interpreters", "exporters", "tests", "bench", "start", "examples")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "fixtures" not in path.parts]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md"]
"""Checked pages. CHANGELOG.md is left out because it may mention files that no longer exist."""

FILE = re.compile(r"(?<![\w./<>*{}$\"'-])((?:[\w.-]+/)*[\w.-]+\.(?:py|js|md))\b(?![\w/*{])")
FUNCTION = re.compile(r"(?<![\w.$:<>])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\(\)")
NAME = re.compile(
    r"(?<![\w./])(?:pyprof\.)?((?:model|session|unwind|objfile|symbolize|runtime_code|collectors|exporters|interpreters"
    r"|bpf|perf|ptrace|gdb|combined|offcpu|postmortem|cpython)(?:\.(?!md\b)\w+)+)"
)
WORTH_IT = re.compile(r"#.*(?:\w\.\w|\(\))")
"""A pattern for comments with possible names. It avoids tokenizing, which takes ten times as long as parsing."""
ROOMS = {name: ROOT / name for name in ("unwind", "collectors", "exporters", "interpreters")}
ROOMS |= {folder.name: folder for top in ("collectors", "interpreters") for folder in (ROOT / top).glob("*/")}

OTHERS = {
    *("aio.py", "encoder.py", "Objects/locations.md"),  # CPython
    *("minidump.py", "docs/symbol_files.md"),  # the minidump package, Breakpad
    "oddities.append",
    "shop.py",  # an example
    *("row_number", "perf.data"),  # SQL, perf
    *("Node.js", "gen-postmortem-metadata.py"),  # V8
}
"""Names of files and functions of other projects."""
CLASS = re.compile(r"(?<![\w`./<$:-])([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+)(?![\w/-]|\.\w)")
OTHER_CLASSES = {
    *("PyCodeObject", "PyDictKeysObject", "PyDictValues", "PyFrameObject", "PyGenObject", "PyInterpreterState"),
    *("PyFrameObjects", "PyObject", "PySetObject", "PyThreadState", "InitVar"),  # CPython
    *("StubCodeDesc",),  # HotSpot
    *(
        "AnyValue",
        "ExportProfilesServiceResponse",
        "PushRequest",
        "WriteRaw",
        "WriteRawRequest",
        "ProfilesData",
        "ProfilesDictionary",
        "OpenMetrics",
        "OpenTelemetry",
        "InteractiveShell",
        "ClickHouse",
        "KeyValue",
        "LowCardinality",
        "ExportProfilesServiceRequest",
        "WriteRaw",
        "PusherService",
    ),  # formats and libraries
    *("CodeView", "HotSpot", "MiniDebugInfo", "PerfSupportPlugin"),  # compilers and their formats
    *("CodeBlob", "CompressedLineNumberReadStream", "ContinuationEntry", "JavaThread", "MacroAssembler"),  # HotSpot
    *("OopHandle", "PcDesc", "UseCompactObjectHeaders", "UseCompressedClassPointers", "UseCompressedOops"),
    *(
        "BytecodeArray",
        "FeedbackVector",
        "InstructionStream",
        "JavaScript",
        "ScopeInfo",
        "SharedFunctionInfo",
        "WebAssembly",
    ),  # V8
    *("InstructionAddressSeemsValid", "ScanForReturnAddress"),  # Breakpad
    "ThumbExpandImm",  # ARM's manual
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the comments and docstrings of a source file, including strings below constants."""
    text = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if WORTH_IT.search(text) else ():
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in syntax.nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@cache
def mentions() -> tuple[tuple[str, str], ...]:
    """Return (place, text) of all comments, docstrings and pages of the project."""
    found = [(f"{path.relative_to(ROOT)}:{line}", text) for path in SOURCES for line, text in prose(path)]
    return (*found, *((str(page.relative_to(ROOT)), page.read_text()) for page in PAGES))


@cache
def defined() -> frozenset[str]:
    """Return the names that the sources define, as "name" and "Class.name".

    These are functions, methods, classes, and attributes and parameters that are called.
    """
    names: set[str] = set()
    for path in SOURCES:
        for node in syntax.nodes(path):
            match node:
                case ast.ClassDef():
                    members = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                    names |= {node.name, *(f"{node.name}.{each.name}" for each in members)}
                case ast.FunctionDef():
                    names.add(node.name)
                    names |= {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    names.add(name)
    return frozenset(names)


def tree() -> frozenset[str]:
    """Return the paths of all files that may be mentioned, and their ends, such as "c.py" and "b/c.py" for
    "a/b/c.py".
    """
    found = set()
    for folder, folders, names in os.walk(ROOT):
        others = {"node_modules", "build" if Path(folder) == ROOT else ""}
        folders[:] = [name for name in folders if name not in others and name[0] != "."]
        for name in names:
            if name.endswith((".py", ".js", ".md")):
                parts = (Path(folder) / name).relative_to(ROOT).parts
                found |= {"/".join(parts[at:]) for at in range(len(parts))}
    return frozenset(found)


@cache
def members(path: Path) -> frozenset[str]:
    """Return the top-level names of a module."""
    names: set[str] = set()
    for node in syntax.tree(path).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.ImportFrom(names=imported):
                names |= {each.asname or each.name for each in imported}
    return frozenset(names)


def is_there(name: str) -> bool:
    """Return True if a name such as "model.unwind_result", "model.unwind_result.lookup_pc" or
    "model.unwind_result.Walk.frames" exists.
    """
    room, *parts = name.split(".")
    folder = ROOMS.get(room, ROOT / "profiler" / room)
    while parts and (folder / parts[0]).is_dir():
        folder = folder / parts.pop(0)
    if not parts:
        return True
    module = folder / f"{parts[0]}.py"
    if not module.exists():
        package = folder / "__init__.py"
        return package.exists() and parts[0] in members(package)
    return len(parts) == 1 or parts[1] in members(module)


def function_is_there(name: str) -> bool:
    """Return True if a function exists, in its class if the name is "Class.name" with a class of the project."""
    owner, _, last = name.rpartition(".")
    owner = owner.rpartition(".")[2]
    if owner in defined() and owner[:1].isupper():
        return f"{owner}.{last}" in defined()
    if owner in sys.stdlib_module_names and hasattr(import_module(owner), last):
        return True
    return last in defined() or hasattr(builtins, last)


def test_files_that_prose_names_are_in_the_tree() -> None:
    files = tree() | OTHERS
    found = [(where, name) for where, text in mentions() for name in FILE.findall(text)]
    assert len(found) > 100
    assert [
        (where, name) for where, name in found if name.removeprefix("../") not in files and "NAME" not in name
    ] == []


def test_functions_that_prose_names_are_defined() -> None:
    found = [(where, name) for where, text in mentions() for name in FUNCTION.findall(text)]
    assert len(found) > 50
    assert [(where, name) for where, name in found if not function_is_there(name) and name not in OTHERS] == []


def test_modules_and_their_members_that_prose_names_are_there() -> None:
    found = [(where, name) for where, text in mentions() for name in NAME.findall(text)]
    assert len(found) > 20
    assert [(where, name) for where, name in found if not is_there(name) and name not in OTHERS] == []


def test_classes_that_prose_of_the_package_names_are_defined() -> None:
    ours = (*(f"{room}/" for room in FOLDERS[:5]), "docs/design.md", "docs/library.md", "docs/porting.md")
    found = [(where, name) for where, text in mentions() if where.startswith(ours) for name in CLASS.findall(text)]
    assert len(found) > 50
    assert [
        (where, name) for where, name in found if name not in defined() | OTHER_CLASSES and not hasattr(builtins, name)
    ] == []


def test_what_is_not_there_would_be_found() -> None:
    assert CLASS.findall("a RuleTable and (BatchWalk), of ModuleMap. Neither `GitHub` nor Class.name") == [
        *("RuleTable", "BatchWalk", "ModuleMap"),
    ]
    assert FILE.findall("see unwind/nobody.py, and (gone.js).") == ["unwind/nobody.py", "gone.js"]
    assert FUNCTION.findall("as rewrite() and Tree.child() do, not f(x)") == ["rewrite", "Tree.child"]
    assert [name for name in ("rewrite", "Tree.child") if not function_is_there(name)] == []
    assert not function_is_there("Tree.rewrite")
    assert not function_is_there("rewritten_by_nobody")
    assert function_is_there("os.fork")
    assert not function_is_there("os.rewritten_by_nobody")
    assert is_there("model.stacks.StackTable")
    assert not is_there("model.stacks.nobody")
    assert not is_there("model.nobody")
