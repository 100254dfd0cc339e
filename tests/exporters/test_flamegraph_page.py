"""The page in a real browser: what a reader does, and that every view holds the same totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pyprof.exporters.names import levels, process_name, thread_name
from pyprof.model.markers import NOT_SAMPLED
from pyprof.model.profile import Frame, FrameKind, Profile, ValueType
from pyprof.model.summary import FunctionsMissing, Shown
from pyprof.model.walk import Trust
from tests.exporters.browser import Browser
from tests.exporters.conftest import OpenPage
from tests.exporters.page import Page
from tests.exporters.profiles import EVIL, PERIOD_NS, SUMMARY, Builder, code, deep, golden, many, marker, profiles, wide
from tests.exporters.support import PLAIN, PROCESSES, THREADS, export

Paths = dict[tuple[str, ...], float]


def expected(
    profile: Profile, by_thread: bool = False, bottom_up: bool = False, hidden: frozenset[int] = frozenset()
) -> Paths:
    """What Page.paths must hold, straight from the profile."""
    sums: Counter[tuple[str, ...]] = Counter({(): 0})
    for thread, leaf, values in profile.totals():
        value = int(values[-1])
        if thread in hidden:
            continue
        stack = [level.name for frame in profile.path(leaf) for level in levels(profile, frame, PLAIN)]
        stack = [name.encode("utf-8", "backslashreplace").decode() for name in stack]
        info = profile.threads[thread]
        groups = [process_name(info)] * (len(profile.processes) > 1) + [thread_name(info)] if by_thread else []
        path = tuple(groups + (stack[::-1] if bottom_up else stack))
        for depth in range(len(path) + 1):
            sums[path[:depth]] += value
    return {path: value for path, value in sums.items() if value or not path}


def weighty(paths: Paths) -> Paths:
    return {path: value for path, value in paths.items() if value or not path}


def test_every_view_of_the_golden_profile_holds_its_totals(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert weighty(page.paths()) == expected(golden())
    page.browser.click_on("#bottom-up")
    assert weighty(page.paths()) == expected(golden(), bottom_up=True)
    page.browser.press("t")
    assert weighty(page.paths()) == expected(golden(), by_thread=True, bottom_up=True)
    page.browser.click_on("#top-down")
    assert weighty(page.paths()) == expected(golden(), by_thread=True)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(profile=profiles())
def test_any_profile_keeps_its_totals_in_every_view(browser: Browser, tmp_path: Path, profile: Profile) -> None:
    path = tmp_path / "any.html"
    path.write_bytes(export("flamegraph", profile))
    browser.open(path)
    page = Page(browser)
    total = int(profile.values[:, -1].sum())
    if not total and len(profile.stack):
        total = int(profile.values[:, 0].sum())  # nothing but sleep: the page shows samples
    elif len(profile.stack):
        assert weighty(page.paths()) == expected(profile)
        browser.press("b")
        assert weighty(page.paths()) == expected(profile, bottom_up=True)
        browser.press("b")
    for keys in ("", "b", "t", "b", "r", "b", "u", "b", "r"):
        for key in keys:
            browser.press(key)
        assert page.paths()[()] == total
        own = browser.run("Array.from(tree.self).reduce((a, b) => a + b, 0)")
        assert own == pytest.approx(total, rel=1e-9)
    assert browser.complaints() == []


def test_click_zooms_and_escape_resets(open_page: OpenPage) -> None:
    page = open_page(golden())
    whole = page.browser.run("graph.width")
    assert page.rectangle("clone", "work")["width"] < whole / 2
    page.click("clone", "work")
    assert page.rectangle("clone", "work")["width"] == pytest.approx(whole)
    assert page.text("#zoom-bar").split("\n")[-2:] == ["work", "26.09 %"]
    assert page.rectangle("clone")["width"] == pytest.approx(whole), "callers stay, full width"
    page.browser.press("Escape")
    assert page.rectangle("all")["width"] == pytest.approx(whole)
    assert not page.shown("#zoom-bar")


def test_zoom_moves_there_where_motion_is_welcome(open_page: OpenPage) -> None:
    page = open_page(golden(), motion="no-preference")
    page.click("clone", "work")
    page.browser.wait(f"Math.abs(graph.rectangle({page.node('clone', 'work')}).width - graph.width) < 0.01")
    page.browser.press("Escape")
    page.browser.wait("graph.transform.k === 1")


def test_clicking_the_zoomed_frame_shows_everything_again(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.click("clone", "work")
    page.click("clone", "work")
    assert page.browser.run("graph.zoomed") == 0


def test_wheel_with_ctrl_zooms_where_the_mouse_is(open_page: OpenPage) -> None:
    page = open_page(golden())
    x, y = page.centre("clone", "work")
    page.browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
    page.browser.settle()
    assert page.browser.run("graph.transform.k") > 1
    assert page.rectangle("clone", "work")["x"] < x < sum(page.rectangle("clone", "work")[k] for k in ("x", "width"))


def test_drag_pans_and_does_not_click(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.click("clone", "work")
    before = page.rectangle("clone", "work")["x"]
    mouse = page.browser.mouse
    mouse("mousePressed", 300, 500, button="left", buttons=1, clickCount=1)
    for x in (350, 400, 450):
        mouse("mouseMoved", x, 500, button="left", buttons=1)
    mouse("mouseReleased", 450, 500, button="left", clickCount=1)
    page.browser.settle()
    assert page.rectangle("clone", "work")["x"] == pytest.approx(before + 150, abs=2)
    assert page.browser.run("graph.zoomed") > 0


def test_wheel_sideways_pans(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.click("clone", "work")
    before = page.rectangle("clone", "work")["x"]
    page.browser.mouse("mouseWheel", 500, 300, deltaX=-40, deltaY=0)
    page.browser.settle()
    assert page.rectangle("clone", "work")["x"] == pytest.approx(before + 40, abs=1)


def test_drag_scrolls_a_deep_graph(open_page: OpenPage) -> None:
    page = open_page(deep(500))
    page.click("recurse")
    mouse = page.browser.mouse
    mouse("mousePressed", 300, 500, button="left", buttons=1, clickCount=1)
    for y in (450, 400):
        mouse("mouseMoved", 300, y, button="left", buttons=1)
    mouse("mouseReleased", 300, 400, button="left", clickCount=1)
    page.browser.settle()
    assert page.browser.run("graph.scroller.scrollTop") == 100


def test_sleeping_threads_are_shown_by_samples(open_page: OpenPage) -> None:
    builder = Builder()
    builder.sample(builder.node([code("poll")]), cpu_ns=0)
    page = open_page(builder.build())
    assert page.paths() == {(): 1, ("poll",): 1}
    assert page.browser.run("document.getElementById('metric').value") == "0"


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


def test_icicle_and_flame_turn_the_graph_over(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert page.rectangle("main")["y"] > page.rectangle("_start")["y"]
    page.browser.click_on("#flame")
    assert page.rectangle("main")["y"] < page.rectangle("_start")["y"]
    assert page.pressed("#flame")
    assert page.hover("handle(Request&)", "clamp").startswith("clamp"), "pointing works upside down"
    page.browser.press("i")
    assert page.pressed("#icicle")


def test_tooltip_tells_share_samples_module_source_and_how_it_was_found(open_page: OpenPage) -> None:
    page = open_page(golden())
    text = page.hover("main", "parse")
    for part in (
        "21.74 % · 50 ms · 5 samples",
        "Self",
        "8.70 % · 20 ms",
        "/opt/server/bin/server",
        "/src/server/parse.cc:9 (and 1 more)",
        ".eh_frame, frame pointer",
    ):
        assert part in text
    assert "inlined into its caller" in page.hover("clamp", "std::min(int, int)")
    page.browser.move(5, 5)
    assert not page.shown("#tooltip")


def test_cut_off_stacks_are_striped_and_explained(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert "outer callers are not known" in page.hover("[stack cut off: no rule]")
    box = page.rectangle("[stack cut off: no rule]")
    page.browser.move(700, 700)
    row = {tuple(page.pixel(box["x"] + 20 + at, box["y"] + 18)) for at in range(8)}
    assert len(row) > 1, "stripes"
    assert "[cut short]" in page.text("#legend")


def test_threads_are_grouped_hidden_and_collapsed(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.click_on("#threads")
    page.browser.click_on("#by-thread")
    assert ("server (pid 100)", "worker;1 (tid 101)", "clone", "work") in page.paths()
    page.browser.click_on("#thread-list label[title='main (tid 100)'] input")
    assert weighty(page.paths()) == expected(golden(), by_thread=True, hidden=frozenset({0}))
    assert page.text("#threads") == "Threads 3/4"
    page.browser.click_on("#thread-list label[title='worker;1 (tid 101)'] button")
    paths = page.paths()
    worker = ("server (pid 100)", "worker;1 (tid 101)")
    assert paths[worker] == 60_000_000
    assert not [path for path in paths if path[:2] == worker and len(path) > 2]
    assert paths[()] == 120_000_000
    page.browser.click_on("#no-threads")
    assert page.shown("#empty")


def test_processes_are_grouped_without_their_threads(open_page: OpenPage) -> None:
    page = open_page(golden(), PROCESSES)
    paths = page.paths()
    assert ("server (pid 100)", "clone", "work") in paths
    assert {path[0] for path in paths if path} == {"server (pid 100)", "child (pid 200)"}
    box = page.rectangle("child (pid 200)")
    page.browser.click(box["x"] + 8, box["y"] + 9)
    assert not [path for path in page.paths() if path[:1] == ("child (pid 200)",) and len(path) > 1]
    assert ("server (pid 100)", "clone", "work") in page.paths()
    page.browser.click_on("#threads")
    page.browser.click_on("#by-process")
    assert ("clone", "work") in page.paths()


def test_caret_of_a_thread_collapses_it(open_page: OpenPage) -> None:
    page = open_page(golden(), THREADS)
    box = page.rectangle("worker;1 (tid 101)")
    page.browser.click(box["x"] + 8, box["y"] + 9)
    assert not [path for path in page.paths() if path[1:2] == ("worker;1 (tid 101)",) and len(path) > 2]
    assert page.browser.run("graph.zoomed") == 0
    page.browser.click(page.rectangle("worker;1 (tid 101)")["x"] + 8, box["y"] + 9)
    assert [path for path in page.paths() if path[1:2] == ("worker;1 (tid 101)",) and len(path) > 2]


def test_summary_says_what_was_recorded_and_how_to_mend_it(open_page: OpenPage) -> None:
    page = open_page(golden())
    assert page.text("#problems") == "1"
    page.browser.click_on("#summary")
    text = page.text("#summary-panel")
    for part in ("1,187", "99 Hz", "98.4 Hz", "99.41 %", "cut short: no unwind rule", "21.5 µs", "63 µs", "0.71 %"):
        assert part in text
    for part in ("/opt/server/lib/libplugin.so", "no symbols", "apt-get install libplugin-dbg", SUMMARY.notes[0]):
        assert part in text
    assert "/opt/server/bin/server" not in text, "modules that lack nothing are not listed"
    page.browser.press("s")
    assert not page.shown("#summary-panel")


def test_what_must_be_read_first_stands_below_the_title(open_page: OpenPage) -> None:
    assert not open_page(golden()).shown("#warnings")
    missing = FunctionsMissing("Python", (7, 8), 11_000_000_000, "--collector ptrace")
    ends = {"no_python": 11_000_000_000, "root": 870_000_000}
    shown = Shown("cpu", "nanoseconds", 11_870_000_000, ends)
    page = open_page(replace(golden(), summary=replace(SUMMARY, functions_missing=(missing,), shown=shown)))
    assert page.text("#warnings") == "Python functions are missing in 2 processes: --collector ptrace has them"
    assert page.text("#facts").endswith("7.33 % in whole stacks")
    page.browser.click_on("#summary")
    assert "without Python functions" in page.text("#summary-panel")
    assert "a debugger or strace traces the thread" in page.text("#summary-panel").lower()


def test_functions_table_counts_self_and_total_and_leads_back_to_the_graph(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.press("f")
    table = page.browser.run("[...document.querySelectorAll('#rows tr')].map(r => [...r.cells].map(c => c.innerText))")
    assert table[0] == ["120 ms52.17 %", "120 ms52.17 %", "12", "", "memcpy⇅", "libc.so.6"]
    assert ["20 ms8.70 %", "90 ms39.13 %", "9", "", "parse⇅", "server"] in table
    page.browser.click_on("[data-sort=name]")
    names = page.browser.run("[...document.querySelectorAll('#rows tr')].map(r => r.cells[4].innerText)")
    assert names == sorted(names)
    page.browser.click_on("[data-sort=count]")
    counts = page.browser.run("[...document.querySelectorAll('#rows tr')].map(r => Number(r.cells[2].innerText))")
    assert counts == sorted(counts, reverse=True)
    page.browser.click_on("#rows tr:first-child button")
    assert page.pressed("#view-graph")
    assert page.browser.run("graph.zoomed") > 0


def test_theme_follows_the_system_until_it_is_chosen(open_page: OpenPage) -> None:
    page = open_page(golden(), scheme="dark")
    root = "document.documentElement.dataset.theme"
    assert page.browser.run(root) == "dark"
    x, y = page.centre("main")
    dark = page.pixel(x, y + 6)
    assert sum(page.pixel(x, 700)) < 150
    page.browser.click_on("#theme")
    assert page.browser.run(root) == "light"
    assert page.pixel(x, y + 6) != dark
    assert page.pixel(x, 700) == [255, 255, 255]
    page.browser.run("localStorage.clear()")


def test_arrow_keys_walk_the_frames_and_are_announced(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.run("graph.canvas.focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.browser.press(key)
    assert page.text("#announce").startswith("_start, Total 60.87 %")
    page.browser.press("ArrowRight")
    page.browser.press("Enter")
    assert page.text("#zoom-name") == "clone"


def test_metric_changes_what_widths_mean(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.run("(() => { const m = document.getElementById('metric'); m.value = '0';"
                     "m.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert page.paths()[()] == 24
    assert page.hover("all").split("\n")[-1] == "100 % · 24 samples"


def test_legend_highlights_a_module(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.click_on("#legend button[title^='Highlight libc.so.6']")
    assert page.text("#matched").startswith("65.22 %")
    page.browser.click_on("#legend button[title^='Highlight libc.so.6']")
    assert page.text("#matched") == ""


def test_names_cannot_run_as_script(open_page: OpenPage) -> None:
    page = open_page(golden().__class__(**{**golden().__dict__, "title": EVIL}))
    assert EVIL in page.hover("libplugin.so+0x77", EVIL)
    page.browser.press("f")
    assert EVIL in page.text("#rows")
    page.browser.click_on("#threads")
    assert EVIL in page.text("#thread-list")
    assert page.text("#title") == EVIL
    assert page.browser.run("document.title") == f"{EVIL} · pyprof"
    assert page.browser.run("document.querySelectorAll('img').length") == 0


def test_policy_stops_injected_script(browser: Browser, open_page: OpenPage, tmp_path: Path) -> None:
    page = tmp_path / "injected.html"
    text = export("flamegraph", golden()).decode()
    page.write_text(text.replace("<header>", "<script>window.injected = 1</script><header>", 1))
    browser.open(page)
    assert browser.run("window.injected") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())


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


def test_wide_profile_opens_with_all_its_nodes_and_totals(open_page: OpenPage) -> None:
    profile = wide()
    page = open_page(profile)
    assert page.browser.run("tree.n") == 100_001
    assert page.browser.run("tree.total") == int(profile.values[:, 1].sum())
    assert page.search("function_12").endswith("· 111 functions")
    page.browser.press("Enter")
    assert page.browser.run("graph.zoomed") > 0
    page.browser.press("Escape")
    page.browser.click_on("#bottom-up")
    assert page.browser.run("tree.total") == int(profile.values[:, 1].sum())
    assert page.browser.run("tree.n") <= 600_000


def test_page_of_an_empty_profile_says_so(open_page: OpenPage) -> None:
    page = open_page(Builder([]).build())
    assert page.shown("#empty")
    page.browser.press("f")
    assert page.text("#rows-note") == "0 functions."
    page.browser.click_on("#view-sandwich")
    assert not page.shown("#center-pick")


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


def test_start_of_programs_and_threads_is_one_thin_row_that_opens(open_page: OpenPage) -> None:
    page = open_page(golden(), folded=True)
    assert page.row(2) == ["main", "work", "[stack cut off: no rule]", "[stack cut off: unreadable]"]
    start = page.rectangle("start-up")
    assert start["height"] < 14 < page.rectangle("start-up", "main")["height"]
    assert page.rectangle("start-up", "main")["y"] == start["y"] + start["height"] + 1
    assert page.browser.run("tree.self[0]") == 0
    assert page.paths()[("start-up",)] == 200_000_000
    assert page.paths()["start-up", "main"] == expected(golden())["_start", "main"]
    assert "_start, clone" in page.hover("start-up")
    main = page.rectangle("start-up", "main")
    for below in (2, main["height"] - 2):
        page.browser.move(main["x"] + 20, main["y"] + below)
        assert page.text("#tooltip").startswith("main\n")
    page.browser.move(start["x"] + start["width"] + 20, start["y"] + 5)
    assert not page.shown("#tooltip"), "beside it there is nothing"
    page.browser.press("i")
    assert page.hover("start-up", "main").startswith("main"), "pointing works upside down"
    page.browser.press("i")
    page.browser.press("t")
    assert ("server (pid 100)", "worker;1 (tid 101)", "start-up", "work") in page.paths()
    page.browser.press("t")
    page.click("start-up")
    assert weighty(page.paths()) == expected(golden())
    assert not page.pressed("#start")
    page.browser.click_on("#start")
    assert page.shown("#start")
    assert ("start-up", "main") in page.paths()


def test_search_sees_what_the_start_row_hides_only_if_nothing_else_fits(open_page: OpenPage) -> None:
    page = open_page(golden(), folded=True)
    assert page.search("libc").startswith("56.52 %"), "not the clone of libc that every thread begins with"
    page.browser.press("Escape")
    assert page.search("_start").startswith("86.96 %")


def picked(page: Page, name: str) -> None:
    """Chooses a function in the table; it must be marked where one looks."""
    page.browser.press("f")
    row = f"[...document.querySelectorAll('#rows .name')].findIndex(b => b.title === '{name}')"
    at = page.browser.run(row)
    assert at >= 0
    page.browser.click_on(f"#rows tr:nth-child({at + 1}) button")
    assert page.pressed("#view-graph")
    assert page.text("#zoom-name") == name
    box = page.browser.run("graph.rectangle(graph.focus)")
    top = page.browser.run("graph.canvas.getBoundingClientRect().y")
    assert box["width"] == pytest.approx(page.browser.run("graph.width"))
    assert page.pixel(box["x"] + box["width"] - 8, top + box["y"] + 4) == [0xB3, 0x12, 0x6F]


def test_function_that_is_chosen_is_marked_wherever_one_was_zoomed_before(open_page: OpenPage) -> None:
    page = open_page(golden(), folded=True)
    page.click("main", "parse")
    picked(page, "memcpy")
    picked(page, "work")
    picked(page, "eval")
    picked(page, "_start")
    picked(page, "main")
    assert page.text("#matched").endswith("· 1 function"), "that function, not all with its letters"
    page.browser.press("b")
    picked(page, "handle(Request&)")
    page.browser.press("t")
    page.browser.run("collapseAll(true)")
    picked(page, "clamp")


def test_function_whose_name_is_part_of_others_is_chosen_alone(open_page: OpenPage) -> None:
    builder = Builder()
    outer = [code("main"), code("dumps", rel=0x200)]
    for name, times in (("of", 5), ("f", 1), ("ff", 2)):
        for _ in range(times):
            builder.sample(builder.node([*outer, code(name, rel=0x300 + times)]))
    page = open_page(builder.build())
    page.search("of")
    page.browser.press("Enter")
    page.browser.press("Escape")
    page.browser.press("Escape")
    page.browser.run("graph.canvas.focus()")
    picked(page, "f")
    assert page.text("#matched") == "12.50 % · 1 function"
    page.browser.press("f")
    assert len(page.browser.run("[...document.querySelectorAll('#rows tr')].map(r => 1)")) == 5, "the list stays"


def test_functions_are_named_on_a_narrow_screen(open_page: OpenPage) -> None:
    page = open_page(golden(), width=390, height=844)
    page.browser.press("f")
    cell = page.browser.run("(() => { const r = document.querySelector('#rows tr').cells[4].getBoundingClientRect();"
                            "return [r.x, r.width, document.body.scrollWidth]; })()")  # fmt: skip
    assert cell[1] > 200
    assert cell[0] + cell[1] <= 390 == cell[2]
    assert page.text("#rows tr td:nth-child(5)").split("\n") == ["memcpy⇅", "libc.so.6"]


def test_link_restores_what_is_shown_and_undo_goes_back_step_by_step(open_page: OpenPage) -> None:
    page = open_page(golden(), folded=True)
    assert page.browser.run("location.hash") == ""
    steps: list[tuple[str, str]] = []

    def step(action: Callable[[], object]) -> None:
        steps.append((page.browser.run("location.hash"), page.text("#total")))
        action()
        page.browser.settle()

    step(lambda: page.browser.press("u"))
    step(lambda: page.browser.run("change('hidden', new Set([0, 2]))"))
    step(lambda: page.click("clone", "work"))
    step(lambda: page.search("libc"))
    step(lambda: page.browser.run("document.activeElement.blur(), setFlipped(true)"))
    step(lambda: page.browser.press("f"))
    step(lambda: page.browser.click_on("[data-sort=name]"))
    link = page.browser.run("location.hash")
    rows = page.text("#rows")
    assert page.text("#total") == "90 ms of 230 ms (39.13 %)"
    page.browser.run("show('')")
    assert page.text("#total") == "230 ms"
    page.browser.run(f"location.hash = {link!r}")
    page.browser.wait("state.view === 'table'")
    assert page.browser.run("location.hash") == link
    assert page.text("#rows") == rows
    page.browser.press("z")
    assert page.browser.run("location.hash") == "", "also a link that was followed is a step"
    page.browser.run(f"show({link[1:]!r})")
    for hash_, total in reversed(steps):
        page.browser.press("z")
        assert (page.browser.run("location.hash"), page.text("#total")) == (hash_, total)
    assert page.browser.run("document.getElementById('undo').disabled")


def test_link_means_the_same_functions_and_threads_on_the_page_of_another_recording(open_page: OpenPage) -> None:
    page = open_page(golden())
    chosen = "[...state.hidden].map((at) => model.threads[at].title).join(), model.frames[state.center]?.name"
    place = page.browser.run("model.frames.findIndex((frame) => frame.name === 'work')")
    page.browser.run(f"change('hidden', new Set([1])), change('center', {place})")
    page.browser.settle()
    link = page.browser.run("location.hash.slice(1)")
    threads, function = page.browser.run(f"[{chosen}]")
    assert function == "work"
    other = open_page(golden().filter(function="^work$"))
    assert other.browser.run("model.frames.findIndex((frame) => frame.name === 'work')") != place
    other.browser.run(f"show({link!r})")
    assert other.browser.run(f"[{chosen}]") == [threads, function]


def test_zoom_stays_where_it_is_when_less_is_shown(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.click("clone", "work")
    page.browser.run("change('hidden', new Set([0]))")
    assert page.text("#zoom-name") == "work"
    assert page.rectangle("clone", "work")["width"] == pytest.approx(page.browser.run("graph.width"))
    page.browser.press("b")
    assert not page.shown("#zoom-bar")


@pytest.mark.parametrize(
    "link",
    [
        "hidden=9,x,-1&metric=77&picked=1e9&sort=nothing&view=other&zoom=*",
        "%%&=&&zoom",
        "range=90000000000,95000000000",
        "range=-9,-5",
    ],
)
def test_link_with_nonsense_shows_what_it_can(open_page: OpenPage, link: str) -> None:
    page = open_page(golden())
    page.browser.run(f"show({link!r})")
    assert page.browser.run("tree.n") > 10


def part_of(profile: Profile, page: Page) -> Profile:
    """The samples of the range that the page shows."""
    begin, end = page.state("range")
    return profile.filter(start=begin / 1e9, end=end / 1e9)


def test_range_of_time_shows_what_a_profile_of_that_time_does(open_page: OpenPage) -> None:
    profile = replace(golden(), duration_ns=250_000_000)
    page = open_page(profile)
    box = page.browser.run("(r => [r.x, r.y, r.width])(strip.canvas.getBoundingClientRect())")
    mouse = page.browser.mouse
    at = [box[0] + box[2] * share for share in (0.21, 0.5, 0.63)]
    mouse("mousePressed", at[0], box[1] + 20, button="left", buttons=1, clickCount=1)
    for x in at[1:]:
        mouse("mouseMoved", x, box[1] + 20, button="left", buttons=1)
        page.browser.settle()
        assert weighty(page.paths()) == expected(part_of(profile, page)), "while it is dragged"
    mouse("mouseReleased", at[2], box[1] + 20, button="left", clickCount=1)
    page.browser.settle()
    part = part_of(profile, page)
    assert 5 < len(part.stack) < len(profile.stack)
    assert weighty(page.paths()) == expected(part)
    assert page.text("#total").startswith(f"{part.total // 1_000_000} ms of 230 ms")
    assert page.browser.run("document.getElementById('from').valueAsNumber") == pytest.approx(0.0525, abs=0.001)
    link = page.browser.run("location.hash")
    page.browser.click_on("#bottom-up")
    assert weighty(page.paths()) == expected(part, bottom_up=True)
    page.browser.press("f")
    shown = page.browser.run("tallyFunctions(model, plain).rows.reduce((sum, row) => sum + row.self, 0)")
    assert shown == page.browser.run("tree.total") == part.total
    for _ in range(3):
        page.browser.press("z")
    assert page.browser.run("state.range") is None, "the drag is one step"
    page.browser.run(f"show({link[1:]!r})")
    assert weighty(page.paths()) == expected(part)


def test_range_of_time_is_typed_and_moved_by_keys(open_page: OpenPage) -> None:
    profile = replace(golden(), duration_ns=250_000_000)
    page = open_page(profile)
    page.browser.run("(field => { field.focus(); field.select(); })(document.getElementById('to'))")
    page.browser.type("0.05")
    page.browser.run("document.activeElement.blur()")
    assert page.state("range") == [0, 50_000_000]
    assert weighty(page.paths()) == expected(part_of(profile, page))
    assert sum(weighty(page.paths()).values()) > 0
    page.browser.run("strip.canvas.focus()")
    for _ in range(8):
        page.browser.press("ArrowRight")
    page.browser.press("ArrowRight", modifiers=8)
    assert page.state("range") == [20_000_000, 72_500_000]
    assert weighty(page.paths()) == expected(part_of(profile, page))
    for _ in range(12):
        page.browser.press("ArrowLeft")
    assert page.state("range")[0] == 0, "not beyond the beginning"
    page.browser.click_on("#whole")
    assert weighty(page.paths()) == expected(profile)


def test_map_of_each_second_shows_where_in_it_and_a_click_chooses_that(open_page: OpenPage) -> None:
    builder = Builder()
    busy, idle = builder.node([code("busy")]), builder.node([code("idle", rel=0x200)])
    for nth in range(300):
        builder.sample(busy if nth % 100 == 40 else idle, cpu_ns=PERIOD_NS if nth % 100 == 40 else PERIOD_NS // 8)
    page = open_page(builder.build())
    page.browser.run(
        "(s => { s.value = 'offsets'; s.dispatchEvent(new Event('change')); })(document.getElementById('strip-mode'))"
    )
    place = "strip.canvas.getBoundingClientRect()"
    x, y, wide = page.browser.run(f"[{place}.x, {place}.y, strip.width / strip.columns]")
    cells = page.browser.run("Array.from(strip.lanes[0].bins.slice(0, 150))")
    assert [cell for cell, value in enumerate(cells) if value > 5_000_000] == [20, 70, 120]
    page.browser.click(x + wide * 1.5, y + 20.5 * 3)
    assert page.state("range") == [1_400_000_000, 1_420_000_000]
    assert page.paths()[("busy",)] == PERIOD_NS
    assert page.text("#total") == "11.3 ms of 401 ms (2.80 %)"
    page.browser.click(x + wide * 10.5, y + 20.5 * 3)
    assert page.state("range") is None, "beyond the end of the recording there is nothing to choose"
    page.browser.run(f"""
      strip.canvas.setPointerCapture = () => {{}};
      strip.press({{ button: 0, clientX: {x + wide / 2}, clientY: {y + 10} }});
      strip.move({{ clientX: {x + wide / 2}, clientY: {y + 40} }});
      strip.canvas.dispatchEvent(new PointerEvent("pointercancel"));
    """)
    assert "range=" in page.browser.run("location.hash"), "a drag that became scrolling stays what it was"


def test_wait_that_is_one_sample_counts_for_its_part_in_the_range(open_page: OpenPage) -> None:
    builder = Builder()
    wait, work = builder.node([code("wait")]), builder.node([code("work", rel=0x200)])
    for nth in range(100):
        builder.sample(work, cpu_ns=PERIOD_NS)
        if nth == 20:
            builder.sample(wait, thread=0, cpu_ns=500_000_000)
    types = (ValueType("samples", "count"), ValueType("offcpu", "nanoseconds"))
    page = open_page(builder.build(value_types=types, duration_ns=1_010_000_000))
    page.browser.run("chooseRange([400e6, 600e6])")
    assert page.paths() == {(): 400_000_000, ("work",): 200_000_000, ("wait",): 200_000_000}
    page.browser.run("chooseRange([700e6, 900e6])")
    assert page.paths()[("wait",)] == 10_000_000
    bars = page.browser.run("strip.lanes[0].bins.reduce((a, b) => a + b, 0)")
    assert bars == pytest.approx(1_500_000_000, rel=1e-6)


def test_timeline_has_lanes_by_thread_and_processor_of_what_is_not_hidden(open_page: OpenPage) -> None:
    cpu = np.arange(len(golden().stack), dtype=np.int32) % 3 - 1
    page = open_page(replace(golden(), duration_ns=250_000_000, cpu=cpu))
    lanes = "strip.lanes.map(lane => [lane.title, lane.bins.reduce((a, b) => a + b, 0) / 1e6])"
    of_threads = [
        ["main (tid 100)", 110],
        ["worker;1 (tid 101)", 60],
        [f"{EVIL} (tid 102)", 30],
        ["thread (tid 200)", 30],
    ]
    assert page.browser.run(lanes) == [["", 230], *of_threads]
    page.browser.run("change('hidden', new Set([0]))")
    assert page.browser.run(lanes) == [["", 120], *of_threads[1:]]
    page.browser.run("change('hidden', new Set())")
    page.browser.run("change('strip', 'cpus')")
    assert page.browser.run(lanes) == [["", 230], ["processor unknown", 80], ["processor 0", 80], ["processor 1", 70]]
    page.browser.run("change('strip', 'off')")
    assert not page.shown("#timeline")


def test_half_a_million_samples_with_times_take_less_than_two_megabytes(open_page: OpenPage) -> None:
    profile = many()
    page = open_page(profile)
    assert page.browser.run("document.documentElement.outerHTML.length") < 2_000_000
    assert page.browser.run("model.timeline.count") == 500_000
    page.browser.run("chooseRange([100e9, 200e9])")
    part = part_of(profile, page)
    assert len(part.stack) > 100_000
    assert page.browser.run("tree.total") == pytest.approx(part.total, rel=1e-4)
    work = {name[:2]: value for name, value in expected(part).items() if len(name) == 2}
    assert {name: page.paths()[name] for name in work} == pytest.approx(work, rel=0.02, abs=5 * PERIOD_NS)


HALF = """((half) => Array.from({ length: half.n }, (_, i) =>
  [half.parent[i], model.frames[half.frame[i]].name, half.value[i], half.self[i]]))"""


def half(page: Page, name: str) -> Paths:
    """Names from the function on -> value, of the callers or the callees that are shown."""
    names: list[tuple[str, ...]] = []
    values: Paths = {}
    for parent, function, value, _ in page.browser.run(f"{HALF}(halves.trees.{name})"):
        names.append((*names[parent], function) if parent >= 0 else (function,))
        values[names[-1]] = value / PERIOD_NS
    return values


def test_callers_and_callees_of_a_function_hold_its_samples_once(open_page: OpenPage) -> None:
    builder = Builder()
    a, b, f, leaf = (code(name, rel=0x100 * at) for at, name in enumerate(("a", "b", "f", "leaf"), 1))
    for stack, times in (([a, f, leaf], 3), ([b, f], 2), ([a, f, b, f, leaf], 4), ([b, leaf], 8), ([f], 1)):
        for _ in range(times):
            builder.sample(builder.node(stack))
    page = open_page(builder.build())
    page.browser.press("f")
    row = "[...document.querySelectorAll('#rows tr')].findIndex(r => r.cells[4].innerText === 'f⇅')"
    page.browser.click_on(f"#rows tr:nth-child({page.browser.run(row) + 1}) .look")
    assert page.pressed("#view-sandwich")
    assert half(page, "callers") == {("f",): 10, ("f", "a"): 7, ("f", "b"): 2}
    callees = {("f",): 10, ("f", "leaf"): 3, ("f", "b"): 4, ("f", "b", "f"): 4, ("f", "b", "f", "leaf"): 4}
    assert half(page, "callees") == callees
    assert page.text("#center-facts") == "total 100 ms (55.56 %) · self 30 ms (16.67 %)"
    page.browser.run("halves.halves.callees.canvas.focus()")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.browser.press(key)
    assert page.text("#center-name") == "b"
    assert half(page, "callers") == {("b",): 14, ("b", "f"): 4, ("b", "f", "a"): 4}
    box = page.browser.run("(r => [r.x, r.y, r.width])(document.getElementById('callees').getBoundingClientRect())")
    page.browser.click(box[0] + 20, box[1] + 30)
    assert page.text("#center-name") == "leaf"
    page.browser.press("z")
    assert page.text("#center-name") == "b"
    page.browser.click_on("#center-pick")
    assert page.text("#zoom-name") == "b"
    page.browser.press("Escape")
    x, y = page.centre("a", "f", "leaf")
    page.browser.move(x, y)
    page.browser.press("c")
    assert page.text("#center-name") == "leaf"
    page.browser.run("chooseRange([0, 30e6])")
    assert half(page, "callers") == {("leaf",): 3, ("leaf", "f"): 3, ("leaf", "f", "a"): 3}


def test_callers_and_callees_have_the_total_of_the_table_for_every_function(open_page: OpenPage) -> None:
    page = open_page(golden(), folded=True)
    page.browser.run("change('hidden', new Set([1])), chooseRange([0, 150e6])")
    rows = page.browser.run("tallyFunctions(model, plainTree()).rows")
    assert len(rows) > 10
    for row in rows:
        page.browser.run(f"lookAt({row['frame']})")
        callers, callees = half(page, "callers"), half(page, "callees")
        assert next(iter(callers.values())) == next(iter(callees.values())) == row["total"] / PERIOD_NS
        own = page.browser.run("halves.trees.callees.self.reduce((a, b) => a + b, 0)")
        assert own == row["total"]


def test_table_draws_when_a_function_ran(open_page: OpenPage) -> None:
    builder = Builder()
    early, late = builder.node([code("main"), code("early")]), builder.node([code("main"), code("late", rel=0x200)])
    for nth in range(96):
        builder.sample(early if nth < 32 else late)
    page = open_page(builder.build(duration_ns=960_000_000))
    script = """(() => { const { rows, outermost } = tallyFunctions(model, plainTree());
      const found = trends(model, plainTree(), rows.map(row => row.frame), outermost, state);
      return rows.map(row => [model.frames[row.frame].name, [...found.get(row.frame)]]); })()"""
    when = dict(page.browser.run(script))
    assert when["main"] == [2 * PERIOD_NS] * 48
    assert when["early"] == [2 * PERIOD_NS] * 16 + [0] * 32
    assert when["late"] == [0] * 16 + [2 * PERIOD_NS] * 32
    page.browser.press("f")
    assert page.browser.run("document.querySelectorAll('#rows tr svg path').length") == 3


def waits() -> Profile:
    """Of main's 10 samples 6 sleep, 1 waits for a processor; some of it in what another process runs."""
    builder = Builder()
    main, work = code("main"), code("work", rel=0x200)
    sleep = Frame(FrameKind.KERNEL, 0, 0, 0, -1, (), Trust.CONTEXT, "[sleeping: futex]")
    queued = replace(sleep, title="[waiting for a processor]")
    for stack, times in (([main, work, sleep], 5), ([main, sleep], 1), ([main, work], 3), ([main, work, queued], 1)):
        for _ in range(times):
            builder.sample(builder.node(stack))
    return builder.build()


def choose(page: Page, selector: str, value: str) -> None:
    page.browser.run(
        f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')); }})(document.querySelector({selector!r}))"
    )
    page.browser.settle()


def test_colours_by_waiting_and_by_kind_of_code_have_their_legend(open_page: OpenPage) -> None:
    page = open_page(waits())
    choose(page, "#colour", "wait")
    assert page.text("#legend").split("\n") == [
        *("sleeping", "60.00 %", "on a processor", "30.00 %", "waiting for a processor", "10.00 %")
    ]
    palette = "PALETTE.light[LABEL_SLOTS[{}]]"
    sleeping, running = (page.browser.run(palette.format(repr(label))) for label in ("sleeping", "on a processor"))
    colour = "graph.nodeColours[{}]"
    assert page.browser.run(colour.format(page.node("main", "work"))) == sleeping
    page.browser.click_on("#legend button:first-child")
    assert page.text("#matched").startswith("60.00 %")
    page.browser.press("Escape")
    page.browser.press("b")
    assert page.browser.run(colour.format(page.node("work", "main"))) == running, "bottom-up: what its samples did"
    assert page.browser.run(colour.format(page.node("[sleeping: futex]", "work"))) == sleeping
    page.browser.run("lookAt(model.frames.findIndex(frame => frame.name === 'work'))")
    assert page.browser.run("halves.halves.callees.nodeColours[0]") == sleeping
    choose(page, "#colour", "kind")
    assert page.text("#legend").split("\n") == ["kernel", "70.00 %", "native code", "30.00 %"]
    link = page.browser.run("location.hash")
    page.browser.run(f"show(''), show({link[1:]!r})")
    assert page.browser.run("document.getElementById('colour').value") == "kind"


def saved(page: Page, kind: str) -> tuple[str, str]:
    """Name and text of what the page saves; of a picture its first bytes."""
    page.browser.run(
        "window.download = async (name, blob) => { const bytes = new Uint8Array(await blob.arrayBuffer());"
        "window.kept = [name, bytes[0] === 0x89 ? String.fromCharCode(...bytes.slice(1, 4)) : await blob.text()]; }"
    )
    choose(page, "#save", kind)
    page.browser.wait("window.kept")
    name, text = page.browser.run("(kept => { window.kept = null; return kept; })(window.kept)")
    return name, text


def test_what_is_shown_is_saved_as_collapsed_stacks_svg_and_png(open_page: OpenPage) -> None:
    page = open_page(golden())
    choose(page, "#metric", "0")
    name, text = saved(page, "collapsed")
    assert name == "server-pid-100.collapsed"
    ours = text.splitlines()
    assert sorted(ours) == sorted(export("collapsed", golden()).decode().replace(" (app.py)", "").splitlines())
    page.click("clone", "work")
    assert all(line.startswith("clone;work") for line in saved(page, "collapsed")[1].splitlines())
    page.browser.press("Escape")
    name, text = saved(page, "svg")
    assert name.endswith(".svg")
    labels = [part.text for part in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert "_start" in labels
    assert any(label and label.startswith("</script") for label in labels), "a name is text, not markup"
    assert saved(page, "png") == ("server-pid-100.png", "PNG")
    page.browser.run("setView('sandwich')")
    assert saved(page, "svg")[1].count("<svg") == 3


def test_time_that_was_not_sampled_is_no_stack_that_is_cut_and_counts_once(open_page: OpenPage) -> None:
    builder = Builder()
    block = replace(marker(NOT_SAMPLED.title), mark=NOT_SAMPLED)
    for stack, times in (([block], 6), ([marker("[truncated: no unwind rule]"), code("main")], 1), ([code("main")], 3)):
        for _ in range(times):
            builder.sample(builder.node(stack))
    page = open_page(builder.build())
    assert page.text("#legend").split("\n") == [
        "server",
        "40.00 %",
        "[not sampled]",
        "60.00 %",
        "[cut short]",
        "10.00 %",
    ]
    assert "what ran is not known" in page.hover(NOT_SAMPLED.title)
    assert "outer callers" not in page.hover(NOT_SAMPLED.title)
