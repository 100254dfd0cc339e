"""Tests of the page in a browser: every view has the same totals and describes the recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from pyprof.model.analysis.stack_quality import without_evidence
from pyprof.model.marker_frames import NOT_SAMPLED
from pyprof.model.profile import Profile, ThreadInfo
from pyprof.model.summary import FunctionsMissing, Shown
from tests.exporters.browser import Browser
from tests.exporters.conftest import OpenPage
from tests.exporters.page import Page
from tests.exporters.page_totals import expected, weighty
from tests.exporters.profiles import EVIL, SUMMARY, Builder, code, golden, marker, profiles, wide
from tests.exporters.support import PROCESSES, THREADS, export

pytestmark = pytest.mark.system


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
    browser.press("u")  # unfolds the start-up frames, which may have names of the profile
    total = int(profile.values[:, -1].sum())
    if not total and len(profile.stack):
        total = int(profile.values[:, 0].sum())  # without processor time the page shows samples
    elif len(profile.stack):
        assert weighty(page.paths()) == expected(profile)
        browser.press("b")
        assert weighty(page.paths()) == expected(profile, bottom_up=True)
        browser.press("b")
    for keys in ("", "b", "t", "b", "o", "r", "o", "b", "u", "b", "r"):
        for key in keys:
            browser.press(key)
        assert page.paths()[()] == total
        own = browser.run("Array.from(tree.self).reduce((a, b) => a + b, 0)")
        assert own == pytest.approx(total, rel=1e-9)
    assert browser.complaints() == []


def test_sleeping_threads_are_shown_by_samples(open_page: OpenPage) -> None:
    builder = Builder()
    builder.sample(builder.node([code("poll")]), cpu_ns=0)
    page = open_page(builder.build())
    assert page.paths() == {(): 1, ("poll",): 1}
    assert page.browser.run("document.getElementById('metric').value") == "0"


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
    assert "outer callers are unknown" in page.hover("[stack cut off: no rule]")
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
    assert "env" in text
    assert "prod" in text
    for part in ("1,187", "99 Hz", "98.4 Hz", "99.41 %", "cut short: no unwind rule", "21.5 µs", "63 µs", "0.71 %"):
        assert part in text
    for part in ("/opt/server/lib/libplugin.so", "no symbols", "apt-get install libplugin-dbg", SUMMARY.notes[0].text):
        assert part in text
    assert "/opt/server/bin/server" not in text, "modules that lack nothing are not listed"
    page.browser.press("s")
    assert not page.shown("#summary-panel")


def test_what_a_file_does_not_tell_is_not_shown(open_page: OpenPage) -> None:
    page = open_page(replace(golden(), summary=without_evidence(golden().summary), start_ns=0))
    assert "whole stacks" not in page.text("#facts")
    page.browser.press("s")
    shown = page.text("#summary-panel").upper()
    assert "NOT KNOWN" not in shown  # although one module is incomplete
    assert all(words not in shown for words in ("HOW THE STACKS ENDED", "EFFECT ON THE TARGET", "STARTED"))
    assert "Found by" not in page.hover("main")


def test_what_must_be_read_first_stands_below_the_title(open_page: OpenPage) -> None:
    assert not open_page(golden()).shown("#warnings")
    missing = FunctionsMissing("Python", (7, 8), 11_000_000_000, "--collector ptrace")
    ends = {"no_python": 11_000_000_000, "root": 870_000_000}
    shown = Shown("cpu", "nanoseconds", 11_870_000_000, ends)
    page = open_page(replace(golden(), summary=replace(SUMMARY, functions_missing=(missing,), shown=shown)))
    assert page.text("#warnings") == (
        "Python functions are missing in 2 processes: -p 7 -p 8 --collector ptrace has them"
    )
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
    assert "it is unknown what ran" in page.hover(NOT_SAMPLED.title)
    assert "outer callers" not in page.hover(NOT_SAMPLED.title)


def test_calls_in_order_are_those_of_each_thread_one_after_the_other(open_page: OpenPage) -> None:
    builder = Builder([ThreadInfo(100, 100, "main", "server"), ThreadInfo(100, 101, "worker", "server")])
    main, a, b = code("main"), code("a"), code("b")
    for stack in ([main, a], [main, a], [main, b], [main, a], [code("other")], [main, a]):
        builder.sample(builder.node(stack))
        builder.sample(builder.node([main, b]), thread=1)
    page = open_page(builder.build())
    page.browser.press("o")
    assert page.pressed("#in-order")
    assert page.row(1) == ["main (tid 100)", "worker (tid 101)"]
    assert page.row(2) == ["main", "other", "main", "main"]
    assert page.row(3) == ["a", "b", "a", "a", "b"]
    widths = page.browser.run("Array.from(tree.value.slice(tree.rowStart[3], tree.rowStart[4]), ns => ns / 1e7)")
    assert widths == [2, 1, 1, 1, 6]
    assert page.paths()[()] == 120_000_000
    page.browser.run("graph.zoomTo(tree.rowStart[3] + 2, false);0")
    link = page.browser.run("location.hash")
    page.browser.run(f"show(''), show({link[1:]!r});0")
    assert page.browser.run("graph.zoomed - tree.rowStart[3]") == 2
    page.browser.run("resetZoom(), chooseRange([0, 70e6]);0")
    assert page.row(3) == ["a", "b", "a", "b"]
    page.browser.press("b")
    assert not page.pressed("#in-order")
    assert page.pressed("#bottom-up")
