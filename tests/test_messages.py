"""Tests of the style of error messages.

They follow "pyprof: " or "  hint: ", so they begin in lower case, without a period.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pyprof import errors
from tests import syntax

ROOT = Path(__file__).parent.parent
NAMED = {name for name, value in vars(errors).items() if isinstance(value, type)} | {
    *("CommandNotFound", "CommandNotExecutable", "_fatal", "Finding")
}
PROPER = ("CAP_", "ELF", "LEB128", "DWARF", "CFA", "FDE", "CIE", "FILE", "Linux", "ZLIB")


def messages() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of the literal arguments of every named error, with "x" for the values in an f-string."""
    for folder in ("profiler", "unwind", "collectors", "exporters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in syntax.nodes(path):
                if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in NAMED:
                    continue
                arguments = node.args[2:] if getattr(node.func, "id", "") == "FormatError" else node.args
                for argument in arguments:
                    text = spelled(argument)
                    if text:
                        yield f"{path.relative_to(ROOT)}:{argument.lineno}", text


def spelled(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


def test_messages_and_hints_begin_small_and_have_no_full_stop() -> None:
    found = list(messages())
    assert len(found) > 100
    wrong = [
        (where, text)
        for where, text in found
        if (text[0].isupper() and not text.startswith(PROPER)) or (text.endswith(".") and not text.endswith("..."))
    ]
    assert wrong == []
