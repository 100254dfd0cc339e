"""The one table of counters: what the code counts is in it, and docs/formats.md has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pyprof.model.counters import COUNTERS, lacking, meaning_of
from pyprof.model.interpreter import PARTIAL

ROOT = Path(__file__).parent.parent.parent
DUMPS_ONLY = (
    "postmortem/core_collector.py",
    "postmortem/core_modules.py",
    "core/notes.py",
    "minidump/file.py",
    "postmortem/minidump_collector.py",
    "minidump/microdump.py",
    "postmortem/minidump_mappings.py",
)
"""What they count is told by `dump`, which has no summary."""


@cache
def counted() -> tuple[tuple[str, str], ...]:
    return tuple(_counted())


def _counted() -> Iterator[tuple[str, str]]:
    """(where, name) of everything that the code counts in words; the values in an f-string as "x"."""
    for folder in ("profiler", "unwind", "collectors", "interpreters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            constants = {
                target.id: node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name) and isinstance(node.value.value, str)
            }
            for node in ast.walk(tree):
                for part in _parts(_argument(node)) if not str(path).endswith(DUMPS_ONLY) else ():
                    text = constants.get(part.id, "") if isinstance(part, ast.Name) else _spelled(part)
                    if text:
                        yield f"{path.relative_to(ROOT)}:{part.lineno}", text


def _argument(node: ast.AST) -> ast.expr | None:
    """What diagnostics.count() or oddities.append() is given, or oddities[...] is counted by."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner = ast.unparse(node.func.value)
        counts = node.func.attr == "count" and owner.endswith("diagnostics")
        return node.args[0] if counts or (node.func.attr == "append" and owner.endswith("oddities")) else None
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return node.target.slice if ast.unparse(node.target.value).endswith("oddities") else None
    return None


def _parts(argument: ast.expr | None) -> list[ast.expr]:
    """Both of `this if so else that`."""
    if isinstance(argument, ast.IfExp):
        return [argument.body, argument.orelse]
    return [argument] if argument is not None else []


def _spelled(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


def test_every_counter_of_the_code_has_its_sentence() -> None:
    found = [*counted(), *(("model/interpreter.py", text) for text in PARTIAL.values())]
    assert len(found) > 60
    assert [(where, name) for where, name in found if meaning_of(name) is None] == []


def test_every_sentence_is_of_a_counter_that_there_is() -> None:
    names = [name for _, name in counted()] + list(PARTIAL.values())
    used = {id(meaning_of(name)) for name in names}
    assert [entry.name for entry in COUNTERS if id(entry) not in used] == []


def test_documentation_has_the_table_as_it_is() -> None:
    text = (ROOT / "docs/formats.md").read_text()
    rows = [f"| {entry.name.replace('|', chr(92) + '|')} | {entry.meaning} |" for entry in COUNTERS]
    table = text[text.index("| counter | what it means |") :].splitlines()
    assert table[2 : 2 + len(rows)] == rows
    assert not any(line.startswith("|") for line in table[2 + len(rows) : 3 + len(rows)])


def test_what_a_profile_lacks_is_told_in_the_number_of_the_count() -> None:
    assert lacking("sample lost: the ring was full", 1) == "1 sample lost"
    assert lacking("sample lost: the ring was full", 1234) == "1,234 samples lost"
    assert lacking("child ended before its first sample", 2) == "2 processes ended before the first sample"
    assert lacking("sample lost: the ring was full", 0) == ""
    assert lacking("deleted file read from memory", 3) == ""
    assert lacking("nobody counts this", 3) == ""
