"""Tests of the tables in docs/porting.md.

An added part is named only by its own files and by its line in a registry.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyprof.options import NATIVE_VIEWS
from pyprof.session.pipeline.native_frame_views import VIEWS
from tests.test_layers import ROOT, sources

PAGE = (ROOT / "docs" / "porting.md").read_text()
WORDS = {
    "an architecture (riscv64)": re.compile("riscv", re.I),
    "an exporter (Chrome's trace)": re.compile("chrome", re.I),
    "an interpreter that is recognised (Ruby)": re.compile("ruby", re.I),
    "a collector (minidumps)": re.compile("DumpedProcess"),
    "a view of native frames (`--native calls`)": re.compile(r"""["']calls["']"""),
}
"""A pattern for everything that belongs to each task."""


def row(task: str) -> list[str]:
    """Return the cells of a task's row: own files, line in a registry, documentation, tests."""
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {task} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def files(cell: str) -> set[str]:
    """Return the paths of source files in a cell, where `folder/{a,b}.py` stands for several."""
    found = set()
    for path in re.findall(r"`([\w/{},]+\.py)`", cell):
        before, names, after = re.fullmatch(r"(.*?)(?:\{(.*)\})?([^{}]*)", path).groups("")  # type: ignore[union-attr]
        found |= {f"{before}{name}{after}" for name in names.split(",")}
    return found


def naming(words: re.Pattern[str]) -> set[str]:
    """Return the source files that match, without the package docstrings that list modules."""
    found = {path for _, path in sources() if words.search(path.read_text())}
    return {str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py" or is_own(path)}


def is_own(path: Path) -> bool:
    """Return True if the package belongs to a row of the table."""
    return str(path.parent.relative_to(ROOT)) == "profiler/model/arch"


@pytest.mark.parametrize("task", WORDS)
def test_what_a_newcomer_added_is_named_by_its_own_files_and_one_line(task: str) -> None:
    own, line, *_ = row(task)
    assert naming(WORDS[task]) == files(own) | files(line)


def test_every_row_of_the_table_is_looked_at() -> None:
    table = PAGE[PAGE.index("| task |") :].split("\n\n")[0].splitlines()[2:]
    assert [line.strip("|").split("|")[0].strip() for line in table] == list(WORDS)


def test_views_have_a_function_and_a_help_text_each() -> None:
    assert set(VIEWS) | {"all"} == set(NATIVE_VIEWS)
