"""Count the lines of code of the product and of its tests, by folder: python tooling/quality/code_lines.py.

A line of code is a line that remains without comments, docstrings and blank lines. Python, C, C++ and assembler count.
The last line of the output has the ratio of tests to product, which is to be at most 0.6.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("profiler", "collectors", "interpreters", "unwind", "exporters", "start", "native")
NATIVE = (".c", ".h", ".cc", ".S")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def count_python(source: str) -> int:
    """Return the number of lines of code in a Python file. A string that is a statement counts as a docstring, also
    below a constant.
    """
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = source.splitlines()
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            used.update(range(token.start[0], token.end[0] + 1))
    return sum(1 for number in used - documented if lines[number - 1].strip())


def count_native(source: str) -> int:
    """Return the number of lines of code in a C, C++ or assembler file."""
    code = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0][0] in "\"'" else " ", source)
    return sum(1 for line in code.splitlines() if line.strip())


def main() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines: Counter[str] = Counter()
    for name in listed.splitlines():
        path = Path(name)
        kind = "product" if path.parts[0] in PRODUCT else "tests" if path.parts[0] == "tests" else ""
        if kind and path.suffix in (".py", *NATIVE):
            count_lines = count_python if path.suffix == ".py" else count_native
            found = count_lines((ROOT / path).read_text())
            lines[kind] += found
            lines["/".join(path.parts[:2] if len(path.parts) > 2 else path.parts[:1])] += found
    totals = {kind: lines.pop(kind) for kind in ("product", "tests")}
    for folder, count in sorted(lines.items()):
        print(f"{folder:<28} {count:>7,}")
    print(f"tests {totals['tests']:,}, product {totals['product']:,}, ratio {totals['tests'] / totals['product']:.3f}")


if __name__ == "__main__":
    main()
