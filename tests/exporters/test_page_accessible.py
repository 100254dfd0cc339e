"""A test of the page's accessibility: axe-core finds nothing serious in any view."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.exporters.base import ExportOptions
from pyprof.model.analysis.line_costs import SourceText
from tests.exporters.conftest import OpenPage
from tests.exporters.profiles import golden
from tests.support import missing

pytestmark = pytest.mark.system

AXE = Path(__file__).parents[2] / "tooling/page/node_modules/axe-core/axe.min.js"
FINDINGS = """axe.run({ resultTypes: ["violations"] }).then(found => found.violations
  .filter(each => each.impact === "serious" || each.impact === "critical" || each.id === "region")
  .map(each => [each.id, each.nodes.map(node => node.html)]))"""
TEXT = SourceText("", tuple(f"line {number};" for number in range(200)), 0)
SOURCES = ExportOptions(sources={"/src/server/parse.cc": TEXT})
VIEWS = (
    "setView('table')",
    "setView('sandwich')",
    "setView('source')",
    "setView('graph'), togglePanel('threads')",
    "togglePanel('summary')",
)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_no_view_has_a_serious_finding(open_page: OpenPage, scheme: str, width: int) -> None:
    if not AXE.is_file():
        missing("needs axe-core: make lint-page")
    page = open_page(golden(), SOURCES, scheme=scheme, width=width, height=844)
    page.browser.run("chooseRange([20e6, 150e6])")
    page.browser.run(AXE.read_text(encoding="utf-8") + ";0")
    for view in VIEWS:
        page.browser.run(f"{view};0")
        page.browser.settle()
        assert page.browser.run(FINDINGS) == [], view
    page.browser.run("document.getElementById('help-dialog').showModal()")
    assert page.browser.run(FINDINGS) == [], "keys and hints"
