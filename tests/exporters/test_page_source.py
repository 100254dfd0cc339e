"""Tests of the page's source view: shares by line, with embedded source text."""

from __future__ import annotations

import pytest

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.flamegraph_tree import _MAX_LETTERS, build_flame_tree
from pyprof.model.analysis.line_costs import SourceText, line_costs
from pyprof.model.profile import Profile
from tests.exporters.conftest import OpenPage
from tests.exporters.page import Page, choose
from tests.exporters.profiles import EVIL, PERIOD_NS, START_NS, Builder, code, golden

pytestmark = pytest.mark.system

A, B = "/src/a.c", "/src/b.c"
TEXT = tuple(f"line {number};" for number in range(1, 201))
OPTIONS = ExportOptions(sources={path: SourceText(f"/here{path}", TEXT, 0) for path in (A, B)})
ROWS = "[...document.querySelectorAll('#source-lines tr')].map(r => [...r.cells].map(c => c.innerText))"


def program() -> Profile:
    """Return a profile with a function that calls itself from two lines, one of them inlined, and a leaf without
    lines.
    """
    main = code("main", rel=0x10, file=A, line=60)
    outer, inner = (code("walk", rel=rel, file=B, line=line) for rel, line in ((0x20, 10), (0x30, 12)))
    builder = Builder()
    for stack, times in (
        ([main, outer, inner], 4),
        ([main, outer, outer, inner, outer], 3),
        ([main, outer, code("memcpy", 0, 0x40)], 2),
        ([main], 1),
    ):
        for _ in range(times):
            builder.sample(builder.node(stack))
    return builder.build()


def shown(page: Page) -> dict[int, tuple[str, str, str]]:
    """Return the row's texts of each line that has a cost."""
    rows = page.browser.run(ROWS)
    return {int(row[2]): (row[0], row[1], row[3]) for row in rows if len(row) == 4 and row[1]}


def test_lines_of_the_page_cost_what_they_cost_in_the_profile() -> None:
    tree = build_flame_tree(program(), OPTIONS)
    assert tree.source is not None
    document = tree.source.document
    assert [file[0] for file in document["files"]] == [A, B]  # type: ignore[attr-defined]
    plain = build_flame_tree(program(), ExportOptions())
    assert plain.lines == []
    assert sum(plain.values[1]) == sum(tree.values[1])
    assert plain.parent == tree.parent


def test_source_view_has_shares_by_line_of_the_range_that_is_shown(open_page: OpenPage) -> None:
    page = open_page(program(), OPTIONS)
    page.browser.press("l")
    assert page.pressed("#view-source")
    assert page.text("#source-name") == "walk"
    costs = {cost.place.line: (cost.own, cost.total) for cost in line_costs(program())}
    assert {line: costs[line] for line in (10, 12, 60)} == {
        10: (3 * PERIOD_NS, 9 * PERIOD_NS),
        12: (4 * PERIOD_NS, 7 * PERIOD_NS),
        60: (PERIOD_NS, 10 * PERIOD_NS),
    }
    assert shown(page) == {
        10: ("30 ms30.00 %", "90 ms90.00 %", "line 10;"),
        12: ("40 ms40.00 %", "70 ms70.00 %", "line 12;"),
    }
    page.browser.run("chooseRange([0, 40e6])")
    page.browser.settle()
    assert shown(page) == {10: ("", "40 ms100 %", "line 10;"), 12: ("40 ms100 %", "40 ms100 %", "line 12;")}
    choose(page, "#source-file", "0")
    assert shown(page) == {60: ("", "40 ms100 %", "line 60;")}
    link = page.browser.run("location.hash")
    page.browser.run(f"undo(), undo(), show({link[1:]!r});0")
    assert shown(page) == {60: ("", "40 ms100 %", "line 60;")}
    page.browser.click_on("#source-look")
    assert page.pressed("#view-sandwich")
    page.browser.click_on("#center-source")
    assert list(shown(page)) == [10, 12], "of the function, not the file that was chosen"


def test_texts_are_bounded_and_a_file_that_was_changed_is_marked(open_page: OpenPage) -> None:
    profile = program()
    late = START_NS + profile.duration_ns + 1
    sources = {B: SourceText(B, (EVIL,) * 200, late), A: SourceText(A, ("x" * 100_000,) * 200, 0)}
    page = open_page(profile, ExportOptions(sources=sources))
    page.browser.press("l")
    assert shown(page)[10][2] == EVIL
    assert page.text("#source-note").startswith("The file was changed after the recording")
    choose(page, "#source-file", "1")
    assert len(shown(page)[60][2]) == 501
    assert page.browser.run("document.getElementById('source-lines').rows.length") == 51, "25 lines on either side"
    many = {f"/src/{n}.c": SourceText("", ("y" * 500,) * 60, 0) for n in range(100)}
    builder = Builder()
    for path in many:
        builder.sample(builder.node([code(path, file=path, line=30)]))
    tree = build_flame_tree(builder.build(), ExportOptions(sources=many))
    assert tree.source is not None
    files = tree.source.document["files"]
    assert len(files) == _MAX_LETTERS // (51 * 501)  # type: ignore[arg-type]


def test_page_without_texts_has_no_source_view(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert not page.shown("#view-source")
    page.browser.press("l")
    assert page.pressed("#view-graph")
    page.browser.run("show('view=source');0")
    assert page.pressed("#view-graph")
    elsewhere = ExportOptions(sources={"/src/other.c": SourceText("", TEXT, 0)})
    assert build_flame_tree(golden(), elsewhere).source is None
