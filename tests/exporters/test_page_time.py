"""Tests of the page in a browser: time ranges, the timeline and the heat map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyprof.model.profile import Profile, ThreadInfo, ValueType
from tests.exporters.conftest import OpenPage
from tests.exporters.page import Page
from tests.exporters.page_totals import expected, weighty
from tests.exporters.profiles import EVIL, PERIOD_NS, Builder, code, golden, many

pytestmark = pytest.mark.system


def part_of(profile: Profile, page: Page) -> Profile:
    """Return the samples in the range that the page shows."""
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


def test_time_that_was_not_recorded_is_hatched_and_said(open_page: OpenPage) -> None:
    begin = golden().start_ns
    page = open_page(replace(golden(), gaps=((begin + 500_000_000, begin + 2_500_000_000),)))
    assert "1 s of 3 s" in page.text("#facts")
    drawn = page.browser.run("""[0.9, 0.5].map(share => {
      const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      pen.drawImage(strip.canvas, -share * strip.canvas.width, -14);
      return pen.getImageData(0, 0, 40, 12).data.some(byte => byte);
    })""")
    assert drawn == [False, True]
    x, y, width = page.browser.run("(r => [r.x, r.y, r.width])(strip.canvas.getBoundingClientRect())")
    page.browser.move(x + width / 2, y + 20)
    assert page.browser.run("strip.inGap(strip.hover)")


def test_most_at_a_time_is_no_more_than_there_is_though_bars_have_few_samples(open_page: OpenPage) -> None:
    """Use two threads that run all the time, with each sample late by a fraction of its period."""
    builder = Builder([ThreadInfo(100, tid, "works", "server") for tid in (100, 101)])
    late = np.random.default_rng(2).random(3000)
    leaf = builder.node([code("busy")])
    for at in range(3000):
        builder.sample(leaf, thread=at % 2)
    built = replace(builder.build(), duration_ns=1500 * PERIOD_NS)
    times = built.start_ns + ((np.arange(3000) // 2 + 0.9 * late) * PERIOD_NS).astype(np.int64)
    page = open_page(replace(built, time_ns=times))
    bar, said = page.browser.run("[strip.peaks[0], strip.most('nanoseconds')]")
    assert bar > 2.2
    assert 1.98 < said < 2.05
    assert page.browser.run("strip.peak('cpu', 'nanoseconds')") == "up to 2 processors at a time (cpu)"


def test_most_at_a_time_is_not_said_of_windows_together(open_page: OpenPage) -> None:
    """Use merged windows, whose samples have the times of the ends of intervals."""
    page = open_page(replace(golden(), period_ns=1))
    assert page.browser.run("strip.peak('cpu', 'nanoseconds')") == "cpu"


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
