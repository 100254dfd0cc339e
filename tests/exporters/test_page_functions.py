"""Tests of the page in a browser: callers and callees, the table, colours, and saved files."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.unwind_result import Trust
from tests.exporters.conftest import OpenPage
from tests.exporters.page import Page, choose
from tests.exporters.page_totals import Paths
from tests.exporters.profiles import PERIOD_NS, Builder, code, golden
from tests.exporters.support import export
from tests.exporters.test_flamegraph_data import contrast
from tests.model.test_functions import web_server

pytestmark = pytest.mark.system

HALF = """((half) => Array.from({ length: half.n }, (_, i) =>
  [half.parent[i], model.frames[half.frame[i]].name, half.value[i], half.self[i]]))"""


def half(page: Page, name: str) -> Paths:
    """Return values by names from the function outwards, of the shown callers or callees."""
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
    """Return a profile of 10 samples in main, of which 6 sleep and 1 waits for a processor."""
    builder = Builder()
    main, work = code("main"), code("work", rel=0x200)
    sleep = Frame(FrameKind.KERNEL, 0, 0, 0, -1, (), Trust.CONTEXT, "[sleeping: futex]")
    queued = replace(sleep, title="[waiting for a processor]")
    for stack, times in (([main, work, sleep], 5), ([main, sleep], 1), ([main, work], 3), ([main, work, queued], 1)):
        for _ in range(times):
            builder.sample(builder.node(stack))
    return builder.build()


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_application_has_strong_colours_and_libraries_pale_ones(open_page: OpenPage, scheme: str) -> None:
    page = open_page(web_server(), scheme=scheme)
    colours = page.browser.run(
        "Object.fromEntries(model.frames.slice(0, model.functions).map((each, at) => [each.name, colours[at]]))"
    )
    strong = page.browser.run("makeShades(state.theme).flat()")
    own = {"load", "sign"}
    assert {name for name, colour in colours.items() if colour in strong} & {*own, "render", "sqlite3_step"} == own
    text = page.browser.run("SPECIAL[state.theme].text")
    assert all(contrast(hexadecimal(colour), text) >= 4.5 for colour in colours.values())
    swatches = page.browser.run(
        "Object.fromEntries([...document.querySelectorAll('#legend button')].map("
        "each => [each.textContent, getComputedStyle(each.querySelector('.swatch')).backgroundColor]))"
    )
    (library,) = (hexadecimal(colour) for name, colour in swatches.items() if name.startswith("libc.so.6"))
    assert library == hexadecimal(
        page.browser.run("paleColour(PALETTE[state.theme][slots.get('libc.so.6')], state.theme)")
    )


def test_functions_of_a_program_without_an_application_have_strong_colours(open_page: OpenPage) -> None:
    builder = Builder()
    builder.sample(builder.node([code("write", 0)]))
    page = open_page(builder.build())
    assert page.browser.run("makeShades(state.theme).flat().includes(colours[0])")


def hexadecimal(colour: str) -> str:
    """Return "rgb(1, 2, 3)" as "#010203"."""
    return (
        colour if colour.startswith("#") else "#" + "".join(f"{int(each):02x}" for each in re.findall(r"\d+", colour))
    )


def saved(page: Page, kind: str) -> tuple[str, str]:
    """Return name and text of the file that the page saves, or the first bytes of a picture."""
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
