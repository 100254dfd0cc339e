"""Tests of the fleet's page in Chromium against a real server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.browser import Browser
from tests.exporters.test_page_accessible import AXE, FINDINGS
from tests.server.serving import Served, served, windows
from tests.support import missing

pytestmark = pytest.mark.system

PATIENCE_S = 30
HOSTILE = "<img src=x onerror=alert(1)>'\""
SHOWN = (
    "document.getElementById('content').ariaBusy === 'false' && document.getElementById('content').children.length > 0"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server") / "data") as client:
        for version in ("1", "2"):
            for each in windows("checkout", 3, version=version, host="h1"):
                assert client.push(each).status == 200
        for each in windows(HOSTILE, 1, host=HOSTILE):
            assert client.push(each).status == 200
        client.until_indexed(7)
        yield client


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


def until(browser: Browser, condition: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not browser.run(condition):
        assert time.monotonic() < deadline, browser.run("document.body.innerText")
        time.sleep(0.05)


def opened(browser: Browser, server: Served, query: str = "", width: int = 1280, scheme: str = "light") -> None:
    browser.events.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/{query}")
    until(browser, f"document.readyState === 'complete' && typeof goTo === 'function' && {SHOWN}")


def complaints(browser: Browser) -> list[Any]:
    logged = [event["params"]["entry"] for event in browser.events if event["method"] == "Log.entryAdded"]
    thrown = [event["params"] for event in browser.events if event["method"] == "Runtime.exceptionThrown"]
    return thrown + [entry for entry in logged if entry["level"] != "verbose"]


@pytest.mark.parametrize("page", ["fleet", "functions", "builds"])
def test_page_of_an_empty_server_has_a_title_and_says_what_helps(browser: Browser, tmp_path: Path, page: str) -> None:
    with served(tmp_path / "data") as client:
        opened(browser, client, f"?page={page}")
        content = browser.run("document.getElementById('content').innerText")
        assert content.startswith("No window has come in this span.")
        assert "[[push]]" in content
        assert not browser.run("document.querySelector('.error, table')")
        assert browser.run("document.getElementById('title').textContent")


def test_services_lead_to_their_flame_graph_and_back(browser: Browser, server: Served) -> None:
    opened(browser, server)
    assert browser.run("[...document.querySelectorAll('tbody tr')].length") == 2
    shares = "[...document.querySelectorAll('progress')].map(bar => bar.position)"
    assert sum(browser.run(shares)) == pytest.approx(1), "shares are of the whole"
    browser.run("[...document.querySelectorAll('td a')].find(a => a.textContent === 'checkout').click()")
    until(browser, "location.search.includes('service=checkout') && document.querySelector('#line canvas') !== null")
    frame = "document.getElementById('picture').contentDocument"
    until(
        browser,
        f"{frame}.getElementById('facts') !== null && {frame}.getElementById('facts').textContent.includes('samples')",
    )
    assert "144 samples" in browser.run(f"{frame}.getElementById('facts').textContent")
    browser.run("history.back()")
    until(
        browser,
        f"!location.search.includes('service') && {SHOWN} && document.querySelectorAll('tbody tr').length === 2",
    )
    assert complaints(browser) == []


def test_overview_shows_the_services_of_the_chosen_host_only(browser: Browser, server: Served) -> None:
    names = "[...document.querySelectorAll('tbody tr td a')].map(link => link.textContent)"
    chosen = "[...document.querySelectorAll('#content select')].map(select => select.value)"
    for page in ("", "page=functions&"):
        opened(browser, server, f"?{page}host=h1")
        assert set(browser.run(names)) == {"checkout"}
        assert browser.run(chosen) == ["h1"]
        opened(browser, server, f"?{page}host=absent")
        assert browser.run(names) == []
        assert browser.run(chosen) == ["absent"]
    opened(browser, server)
    browser.run(
        "(select => { select.value = 'h1'; select.dispatchEvent(new Event('change')) })"
        "(document.querySelector('#content select'))"
    )
    until(browser, f"location.search === '?host=h1' && {SHOWN} && document.querySelectorAll('tbody tr').length === 1")
    assert complaints(browser) == []


def test_range_that_is_dragged_stands_in_the_address_and_chooses_the_picture(browser: Browser, server: Served) -> None:
    opened(browser, server, "?service=checkout&by=version&span=900")
    until(browser, "document.querySelector('.u-over') !== null")
    box = browser.run(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('.u-over').getBoundingClientRect())"
    )
    left, top, width, height = box
    for kind, at, buttons in (("mousePressed", 0.8, 1), ("mouseMoved", 0.9, 1), ("mouseReleased", 0.99, 0)):
        where = {"x": left + at * width, "y": top + height / 2, "button": "left", "buttons": buttons, "clickCount": 1}
        if kind != "mousePressed":
            browser.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        browser.call("Input.dispatchMouseEvent", type=kind, **where)
    until(browser, "/from=[0-9]+/.test(location.search)")
    until(browser, f"{SHOWN} && /from=[0-9]+/.test(document.getElementById('picture').src)")
    first, last = (
        int(browser.run(f"Number(new URLSearchParams(location.search).get('{word}'))")) for word in ("from", "to")
    )
    assert 100 < last - first < 260
    source = browser.run("document.getElementById('picture').src")
    assert f"from={first}&to={last}" in source
    assert complaints(browser) == []


def test_reader_without_and_with_a_wrong_token_is_told_once_what_a_reader_needs(
    browser: Browser, tmp_path: Path
) -> None:
    token, config = tmp_path / "read.token", tmp_path / "server.toml"
    token.write_text("secret-0123456789abc")
    token.chmod(0o600)
    config.write_text(f'[[tenant]]\nname = "a"\nread_token_file = "{token}"\n')
    with served(tmp_path / "data", "--config", str(config)) as client:
        browser.call("Page.navigate", url=f"http://127.0.0.1:{client.port}/")
        until(browser, "document.readyState === 'complete' && typeof goTo === 'function'")
        until(browser, "document.getElementById('login').open")
        text = browser.run("document.body.innerText")
        assert text.count("This server requires a token.") == 1
        assert "Authorization" not in text
        why = "document.getElementById('login-why').textContent"
        browser.run("document.getElementById('token').value = 'wrong'; document.getElementById('enter').click()")
        until(browser, f"{why}.includes('No tenant has this token')")
        assert "read_token_file" in browser.run(why)


def test_two_versions_are_compared(browser: Browser, server: Served) -> None:
    opened(browser, server, "?service=checkout&a=version%3D1&b=version%3D2")
    source = browser.run("document.getElementById('picture').src")
    assert "/api/v1/diff?" in source
    assert "a.label.version=1" in source
    frame = "document.getElementById('picture').contentDocument"
    until(browser, f"{frame}.getElementById('view-table') !== null && {frame}.body.innerText.includes('before')")
    assert complaints(browser) == []


def test_names_of_targets_are_text(browser: Browser, server: Served) -> None:
    opened(browser, server)
    assert HOSTILE in browser.run("document.body.innerText")
    assert browser.run("document.querySelectorAll('#content img').length") == 0
    assert complaints(browser) == []


def test_shares_of_functions_have_the_range_of_the_true_share_below(browser: Browser, server: Served) -> None:
    opened(browser, server, "?page=functions")
    ranges = browser.run("[...document.querySelectorAll('td.number small')].map((range) => range.textContent)")
    assert ranges
    assert all(re.fullmatch(r"[\d.]+ to [\d.]+ %", each) for each in ranges)
    assert complaints(browser) == []


def test_keys_lead_from_page_to_page(browser: Browser, server: Served) -> None:
    opened(browser, server)
    for key, title in (("2", "Functions of the fleet"), ("3", "Builds"), ("1", "All services")):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        until(browser, f"document.getElementById('title').textContent === {title!r}")
    assert complaints(browser) == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("query", ["", "?page=functions", "?page=builds", "?service=checkout"])
def test_no_page_has_a_serious_finding_or_is_wider_than_its_screen(
    query: str, scheme: str, width: int, browser: Browser, server: Served
) -> None:
    if not AXE.is_file():
        missing("needs axe-core: make lint-page")
    opened(browser, server, query, width, scheme)
    browser.run(AXE.read_text(encoding="utf-8") + ";0")
    assert browser.run(FINDINGS.replace("axe.run({", "axe.run({ exclude: [['iframe']] }, {")) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
