"""Tests of the page in a browser: zoom, drag and keyboard navigation of the graph."""

from __future__ import annotations

import pytest

from tests.exporters.conftest import OpenPage
from tests.exporters.page import picked
from tests.exporters.page_totals import expected, weighty
from tests.exporters.profiles import Builder, code, deep, golden
from tests.exporters.test_start_up import python

pytestmark = pytest.mark.system


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


def test_arrow_keys_walk_the_frames_and_are_announced(open_page: OpenPage) -> None:
    page = open_page(golden())
    page.browser.run("graph.canvas.focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.browser.press(key)
    assert page.text("#announce").startswith("_start, Total 60.87 %")
    page.browser.press("ArrowRight")
    page.browser.press("Enter")
    assert page.text("#zoom-name") == "clone"


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


def test_graph_begins_in_the_upper_third_of_a_narrow_screen(open_page: OpenPage) -> None:
    page = open_page(golden(), width=390, height=844)
    top = "document.querySelector('#scroller').getBoundingClientRect().top"
    assert page.browser.run(top) < 844 / 3
    page.browser.click_on("#controls")
    assert page.browser.run("document.querySelector('#controls').getAttribute('aria-expanded')") == "true"
    assert page.browser.run("document.querySelector('#bottom-up').getBoundingClientRect().height") > 0
    page.browser.click_on("#controls")
    assert page.browser.run("document.querySelector('#bottom-up').getBoundingClientRect().height") == 0


def test_application_below_a_deep_framework_is_on_the_first_narrow_screen(open_page: OpenPage) -> None:
    web, shop = "/venv/lib/python3.11/site-packages/web/server.py", "/srv/shop.py"
    builder, stack = Builder(), [python("<module>", "/venv/bin/serve"), python("serve", web)]
    for at in range(40):
        builder.sample(builder.node([*stack, python("log", web)]), cpu_ns=12 if at == 1 else 1)
        stack += [python(f"middleware_{at}", web)]
    for name in ("load_products", "slow_signature"):
        builder.sample(builder.node([*stack, python(name, shop)]), cpu_ns=50)
    page = open_page(builder.build(), folded=True, width=390, height=844)
    for name in ("load_products", "slow_signature"):
        place = page.rectangle("all", "start-up", "middleware_39", name)
        assert place["y"] + place["height"] < 844
        assert place["width"] > 80


def test_functions_are_named_on_a_narrow_screen(open_page: OpenPage) -> None:
    page = open_page(golden(), width=390, height=844)
    page.browser.press("f")
    cell = page.browser.run("(() => { const r = document.querySelector('#rows tr').cells[4].getBoundingClientRect();"
                            "return [r.x, r.width, document.body.scrollWidth]; })()")  # fmt: skip
    assert cell[1] > 200
    assert cell[0] + cell[1] <= 390 == cell[2]
    assert page.text("#rows tr td:nth-child(5)").split("\n") == ["memcpy⇅", "libc.so.6"]
