"""Tests that tooling/page/page.d.ts, against which the page's scripts are checked, declares the written data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyprof.exporters.flamegraph import TEMPLATE, _asset, _data
from tests.exporters.profiles import golden
from tests.exporters.support import PLAIN

pytestmark = pytest.mark.system

TYPES = (Path(__file__).parents[2] / "tooling/page/page.d.ts").read_text()
TAGS = {"HTMLCanvasElement": "canvas", "HTMLSelectElement": "select", "HTMLInputElement": "input"}
TAGS["HTMLDialogElement"] = "dialog"


def members(interface: str) -> dict[str, str]:
    """Return the types of an interface's members as written."""
    found = re.search(rf"^interface {interface} (?:extends .*)?\{{\n(.*?)^\}}", TYPES, re.MULTILINE | re.DOTALL)
    assert found, interface
    return dict(re.findall(r"^  \"?([\w-]+)\"?: (.*)$", found[1], re.MULTILINE))


def names(union: str) -> list[str]:
    found = re.search(rf"^type {union} =(.*?);", TYPES, re.MULTILINE | re.DOTALL)
    assert found, union
    return re.findall(r'"([\w-]+)"', found[1])


@pytest.fixture(scope="module")
def written() -> Any:
    return json.loads(_data(golden(), PLAIN)[0])


def test_data_has_the_declared_columns_and_no_other(written: Any) -> None:
    assert members("Data").keys() == written.keys()
    for part in ("frames", "nodes", "samples"):
        assert set(re.findall(r"(\w+): number", declared(part))) == written[part].keys()


def declared(part: str) -> str:
    found = re.search(rf"^  {part}: \{{(.*?)\}};$", TYPES, re.MULTILINE | re.DOTALL)
    assert found, part
    return found[1]


def test_summary_has_what_the_page_reads(written: Any) -> None:
    summary = written["summary"]
    assert members("Summary").keys() <= summary.keys()
    assert members("ModuleSummary").keys() <= summary["modules"][0].keys()
    for part in ("stops", "not_stopped", "profiler", "shown"):
        assert set(re.findall(r"(\w+): ", members("Summary")[part])) <= summary[part].keys()


def test_page_has_the_declared_elements_and_no_other() -> None:
    page = {at: tag for tag, at in re.findall(r'<(\w+)[^>]*?\bid="([^"]+)"', _asset(TEMPLATE))}
    typed = members("Elements")
    assert sorted(page) == sorted([*names("ButtonId"), *names("OtherId"), *typed])
    assert all(page[name] == "button" for name in names("ButtonId"))
    assert {name: page[name] for name in typed} == {name: TAGS[kind.rstrip(";")] for name, kind in typed.items()}
