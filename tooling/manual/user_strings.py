"""List the texts that users read, for review: `python tooling/manual/user_strings.py [KIND...]`.

Each line has a kind, a place and a text, in which `{}` stands for a value. The kinds are help (of the command line),
reason (the tables of reasons), error (exceptions and their hints), output (lines that commands print or log), and page
(labels of both pages). The list is for human review, so it may contain too much: a word in a page's script may be a key
instead of a label.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("profiler", "unwind", "collectors", "interpreters", "exporters", "start")
HELP_NAMES = re.compile(r"DESCRIPTION|EPILOG|\w*HELP")
"""Pattern of the names of constants whose texts are part of the command line's help."""
REASONS = {"Reason", "MetricKind", "Setting"}
ERRORS = re.compile(r"\w*(Error|Refused|NotAllowed|NotFound|Unsupported|NotSent)|Finding|Problem|Conflict")
"""Pattern of the names of classes whose arguments are messages for users."""
OUTPUT = {"line", "complain", "failure", "refuse", "note", "_log", "log", "_say", "say", "print"}
"""Names of functions that print or log their arguments."""
SCRIPT_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
HTML_TEXT = re.compile(r">([^<>{}]+)<|(?:title|aria-label|placeholder)=\"([^\"]+)\"")

Found = tuple[str, str, str]
"""One text that users see: its kind, place and words."""


def spell(node: ast.AST) -> Iterator[str]:
    """Yield the string literals in an expression of Python code. Each value in an f-string becomes {}."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif not isinstance(node, ast.Call | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from spell(child)


def kind_of_call(call: ast.Call) -> str:
    """Return the kind (help, reason, error, output) of the texts in a call's positional arguments, "" if they are not
    for users.
    """
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in REASONS:
        return "reason"
    if ERRORS.fullmatch(name) and name != "FormatError":
        return "error"
    if name in OUTPUT:
        return "output"
    return "help" if name == "add_argument_group" else ""


def python_texts(path: Path) -> Iterator[Found]:
    place = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            kind = kind_of_call(node)
            for argument in node.args if kind else ():
                yield from ((kind, f"{place}:{argument.lineno}", text) for text in spell(argument))
            for keyword in node.keywords:
                word = keyword.arg or ""
                if kind == "reason" or word in ("help", "description", "epilog", "hint"):
                    kinds = kind or "help"
                    yield from ((kinds, f"{place}:{keyword.value.lineno}", text) for text in spell(keyword.value))
        elif isinstance(node, ast.Assign) and HELP_NAMES.fullmatch(getattr(node.targets[0], "id", "")):
            yield from (("help", f"{place}:{node.lineno}", text) for text in spell(node.value))


def page_texts(path: Path) -> Iterator[Found]:
    pattern = HTML_TEXT if path.suffix == ".html" else SCRIPT_TEXT
    for number, row in enumerate(path.read_text().splitlines(), 1):
        if row.lstrip().startswith(("//", "/*", "*")):
            continue
        for groups in pattern.findall(row):
            yield "page", f"{path.relative_to(ROOT)}:{number}", re.sub(r"\$\{[^}]*\}", "{}", "".join(groups))


def texts() -> Iterator[Found]:
    """Yield all texts for users in the project that contain at least two words."""
    found: list[Found] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += python_texts(path)
    for folder in ("exporters", "profiler/fleet/server"):
        for path in sorted((ROOT / folder / "assets").glob("*")):
            if path.suffix in (".js", ".html") and ".min." not in path.name:
                found += page_texts(path)
    for kind, place, text in found:
        if re.search(r"[A-Za-z]{2}[^\n]* [^\n]*[A-Za-z]{2}", text):
            yield kind, place, " ".join(text.split())


def main(kinds: list[str]) -> None:
    for kind, place, text in sorted(dict.fromkeys(texts()), key=lambda each: each[0]):
        if not kinds or kind in kinds:
            print(kind, place, text, sep="\t")


if __name__ == "__main__":
    main(sys.argv[1:])
