"""Tests of the page in a browser: the link restores the view, and undo goes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.exporters.browser import Browser
from tests.exporters.conftest import OpenPage
from tests.exporters.profiles import golden

pytestmark = pytest.mark.system


def test_link_restores_the_view_and_undo_goes_back_step_by_step(open_page: OpenPage) -> None:
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
    loaded_again(page.browser)
    for hash_, total in reversed(steps):
        page.browser.press("z")
        assert (page.browser.run("location.hash"), page.text("#total")) == (hash_, total)
    assert page.browser.run("document.getElementById('undo').disabled")


def loaded_again(browser: Browser) -> None:
    browser.events.clear()
    browser.call("Page.reload")
    while not any(event["method"] == "Page.loadEventFired" for event in browser.events):
        browser.call("Page.getFrameTree")
    browser.wait("document.documentElement?.dataset.ready === 'yes'")


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
