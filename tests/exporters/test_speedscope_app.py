"""A test of speedscope's own application (npm, in Chromium), which shows the sums of the profile."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from pyprof.model.analysis.function_costs import costs
from tests.exporters.browser import Browser
from tests.exporters.profiles import golden
from tests.exporters.support import export
from tests.support import missing

pytestmark = pytest.mark.system

APP = Path(__file__).parents[2] / "tooling/page/node_modules/speedscope/dist/release/index.html"
ROW = re.compile(r"([\d.]+)ms \([^)]*\)\s+([\d.]+)(ms|ns) \([^)]*\)\s+(\S.*)")
"""A row of the application's function table: total, self, name."""


def test_application_shows_what_functions_cost(browser: Browser, tmp_path: Path) -> None:
    if not APP.is_file():
        missing("needs speedscope: make lint-page")
    profile, local = golden(), tmp_path / "profile.js"
    data = base64.b64encode(export("speedscope", profile)).decode()
    local.write_text(f'speedscope.loadFileFromBase64("x.speedscope.json", "{data}")')
    browser.call("Page.navigate", url=f"{APP.as_uri()}#localProfilePath={local}")
    browser.wait("document.body?.innerText.includes('Sandwich')")
    browser.press("3")
    browser.wait("document.body.innerText.includes('Symbol Name')")
    shown = {
        name: (float(total), float(own) if unit == "ms" else 0.0)
        for total, own, unit, name in ROW.findall(browser.run("document.body.innerText"))
    }
    browser.call("Page.navigate", url="about:blank")  # separates the console messages of two pages
    browser.settle()
    found = {cost.name: (cost.total / 1e6, cost.own / 1e6) for cost in costs(profile).functions if cost.total}
    assert shown["memcpy"] == (120, 120)
    assert {name: both for name, both in found.items() if name.isprintable()}.items() <= shown.items()
