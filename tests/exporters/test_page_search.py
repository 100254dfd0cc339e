"""Tests of the page in a browser: search, also in folded recursion and folded start-up frames."""

from __future__ import annotations

import pytest

from tests.exporters.conftest import OpenPage
from tests.exporters.page_totals import weighty
from tests.exporters.profiles import Builder, code, deep, golden

pytestmark = pytest.mark.system


def test_search_marks_matches_and_says_their_share(open_page: OpenPage) -> None:
    page = open_page(golden())
    x, y = page.centre("work", "parse")
    plain = page.pixel(x, y)
    assert page.search("parse").startswith("39.13 %")
    assert page.pixel(x, y) != plain
    assert page.pixel(x, y) == [0xB3, 0x12, 0x6F]


def test_recursion_counts_once_in_the_matched_share(open_page: OpenPage) -> None:
    page = open_page(deep(500))
    assert page.search("recurse").startswith("100 %")


def test_search_understands_regular_expressions_and_forgives_wrong_ones(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert page.search("/^(memcpy|eval)$/").startswith("65.22 %")
    page.browser.press("Escape")
    assert page.search("/(/") == "not a regex"
    page.browser.press("Escape")
    assert page.search("nowhere") == "no match"


def test_enter_walks_the_matches_and_slash_and_ctrl_f_begin_a_search(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.press("/")
    page.browser.type("memcpy")
    page.browser.press("Enter")
    assert page.text("#zoom-name") == "memcpy"
    first = page.browser.run("graph.zoomed")
    page.browser.press("Enter")
    assert page.browser.run("graph.zoomed") != first
    page.browser.press("Enter", modifiers=8)
    assert page.browser.run("graph.zoomed") == first
    page.browser.press("Escape")
    page.browser.press("Escape")
    assert page.browser.run("document.getElementById('search').value") == ""
    page.browser.press("f", modifiers=2)
    assert page.browser.run("document.activeElement.id") == "search"


def test_deep_recursion_is_one_block_with_its_count_that_opens_and_scrolls(open_page: OpenPage) -> None:
    page = open_page(deep())
    assert set(page.paths()) == {(), ("main",), ("main", "recurse"), ("main", "recurse", "the_leaf")}
    assert page.paths()["main", "recurse"] == page.paths()[()]
    assert page.hover("main", "recurse").startswith("recurse × 19,998\n")
    page.click("main", "recurse")
    assert page.browser.run("tree.rows") == 20_001
    assert page.text("#levels") == "20,001 levels"
    page.browser.run("graph.zoomTo(tree.n - 1)")
    page.browser.settle()
    assert page.rectangle("the_leaf")["width"] == pytest.approx(page.browser.run("graph.width"))
    assert "the_leaf" in page.hover("the_leaf")
    page.browser.press("Escape")
    page.browser.press("b")
    assert page.row(1) == ["recurse", "the_leaf"]
    page.browser.press("b")
    page.browser.press("r")
    assert set(page.paths()) == {(), ("main",), ("main", "recurse"), ("main", "recurse", "the_leaf")}
    assert not page.shown("#levels")


def test_direct_recursion_folds_together_with_equal_siblings(open_page: OpenPage) -> None:
    builder = Builder()
    a, b = code("a"), code("b", rel=0x200)
    builder.sample(builder.node([a, b]))
    builder.sample(builder.node([a, a, b]))
    builder.sample(builder.node([a, a]))
    page = open_page(builder.build())
    page.browser.click_on("#fold")
    assert page.paths() == {(): 30_000_000, ("a",): 30_000_000, ("a", "b"): 20_000_000}
    assert page.browser.run("tree.n") == 3


def test_cycle_of_functions_folds_from_either_end_and_search_finds_all_in_it(open_page: OpenPage) -> None:
    builder = Builder()
    one, two, leaf = code("one"), code("two", rel=0x200), code("leaf", rel=0x300)
    chain = [code("main", rel=0x10), *[one, two] * 4000]
    for depth in (8001, 5000, 2001):
        builder.sample(builder.node([*chain[:depth], leaf]))
    builder.sample(builder.node([*chain[:6], leaf, one, leaf]))
    page = open_page(builder.build())
    block = page.hover("main", "one")
    assert block.startswith("one → two × 4,000\n")
    assert "100 % · 40 ms" in block
    assert weighty(page.paths()) == {
        (): 40_000_000,
        ("main",): 40_000_000,
        ("main", "one"): 40_000_000,
        ("main", "one", "leaf"): 40_000_000,
        ("main", "one", "leaf", "one"): 10_000_000,
        ("main", "one", "leaf", "one", "leaf"): 10_000_000,
    }
    assert page.search("two").startswith("100 %")
    page.browser.press("Escape")
    page.browser.press("b")
    assert page.row(1) == ["leaf"]
    assert page.browser.run("tree.rows") < 8
    page.browser.press("b")
    page.click("main", "one")
    assert page.browser.run("tree.rows") == 8003
    page.browser.press("r")
    page.browser.press("r")
    assert page.browser.run("tree.rows") == 6, "folded again"


def test_shallow_recursion_is_drawn_frame_by_frame(open_page: OpenPage) -> None:
    builder = Builder()
    builder.sample(builder.node([code("f")] * 9))
    assert open_page(builder.build()).browser.run("tree.rows") == 10
    builder.sample(builder.node([code("f")] * 10))
    assert open_page(builder.build()).browser.run("tree.rows") == 2


def test_search_sees_what_the_start_row_hides_only_if_nothing_else_fits(open_page: OpenPage) -> None:
    page = open_page(golden(), folded=True)
    assert page.search("libc").startswith("56.52 %"), "not the clone of libc that every thread begins with"
    page.browser.press("Escape")
    assert page.search("_start").startswith("86.96 %")
