"""Tests of the page without a browser.

Its data equals the profile, its CSP holds, and no name of a target is markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.exporters.display_names import frame_levels
from pyprof.exporters.flamegraph import LIBRARIES, SCRIPTS, _asset
from pyprof.model.profile import Profile
from pyprof.model.untrusted_text import clean_text
from tests.exporters.profiles import EVIL, Builder, code, deep, golden, profiles, wide
from tests.exporters.support import PLAIN, PROCESSES, THREADS, export


def data(page: bytes) -> dict[str, Any]:
    found = re.search(rb'<script type="text/plain" id="profile">([A-Za-z0-9+/=]*)</script>', page)
    assert found
    read: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found.group(1))))
    return read


def stacks(read: dict[str, Any]) -> dict[tuple[int, tuple[str, ...]], list[int]]:
    """Return the values by (thread, names from root to leaf) in the page's data."""
    names = [read["strings"][at] for at in read["frames"]["name"]]
    paths: list[tuple[str, ...]] = [()]
    for node in range(1, len(read["nodes"]["parent"])):
        parent = node - read["nodes"]["parent"][node]
        assert 0 <= parent < node
        paths.append((*paths[parent], names[read["nodes"]["frame"][node]]))
    sums: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    samples = read["samples"]
    for leaf, thread, *values in zip(samples["leaf"], samples["thread"], *samples["values"], strict=True):
        row = sums.setdefault((thread, paths[leaf]), [0] * len(values))
        for column, value in enumerate(values):
            row[column] += value
    return sums


def expected(profile: Profile) -> dict[tuple[int, tuple[str, ...]], list[int]]:
    sums: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for thread, leaf, values in profile.totals():
        names = [level.name for frame in profile.path(leaf) for level in frame_levels(profile, frame, PLAIN)]
        path = tuple(map(clean_text, names))
        row = sums.setdefault((thread, path), [0] * len(values))
        for column, value in enumerate(values.tolist()):
            row[column] += value
    return sums


@given(profiles())
def test_data_is_the_profile_by_thread_and_stack(profile: Profile) -> None:
    assert stacks(data(export("flamegraph", profile))) == expected(profile)


@pytest.mark.parametrize("profile", [golden(), wide(2000)], ids=["golden", "wide"])
def test_no_stack_and_no_value_is_lost(profile: Profile) -> None:
    assert stacks(data(export("flamegraph", profile))) == expected(profile)


def test_deep_stack_stays_whole_and_small() -> None:
    page = export("flamegraph", deep())
    assert len(data(page)["nodes"]["parent"]) == 20_001
    assert len(page) < 300_000


def test_addresses_of_one_function_are_one_node_that_remembers_how_and_where() -> None:
    read = data(export("flamegraph", golden()))
    strings, nodes = read["strings"], read["nodes"]
    parse = [
        node
        for node in range(1, len(nodes["frame"]))
        if strings[read["frames"]["name"][nodes["frame"][node]]] == "parse" and strings[nodes["place"][node]]
    ]
    assert len(parse) == 1
    trusts = [name for bit, name in enumerate(read["trusts"]) if nodes["trust"][parse[0]] >> bit & 1]
    assert trusts == ["eh_frame", "fp"]
    assert strings[nodes["place"][parse[0]]] == "/src/server/parse.cc:9"
    assert nodes["places"][parse[0]] == 2


def test_nodes_that_no_sample_reaches_are_left_out() -> None:
    builder = Builder()
    builder.node([code("main"), code("never")])
    builder.sample(builder.node([code("main"), code("once")]))
    assert b"never" not in json.dumps(data(export("flamegraph", builder.build()))).encode()


def test_threads_option_opens_the_page_grouped() -> None:
    assert data(export("flamegraph", golden(), THREADS))["groupByThread"] is True
    assert data(export("flamegraph", golden()))["groupByThread"] is False
    assert data(export("flamegraph", golden(), PROCESSES))["groupByProcess"] is True


def test_nothing_of_the_target_is_markup() -> None:
    page = export("flamegraph", Builder([]).build(title=f"{EVIL}{{{{data}}}}")).decode()
    assert EVIL not in page
    assert f"<title>{html.escape(EVIL)}{{{{data}}}} · pyprof</title>" in page
    assert EVIL not in export("flamegraph", golden()).decode()


def test_policy_allows_only_the_page_s_own_scripts_and_style() -> None:
    page = export("flamegraph", golden()).decode()
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found
    policy = dict(part.split(" ", 1) for part in html.unescape(found.group(1)).split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in blocks}
        assert hashes == set(policy[directive].split())


def test_page_refers_to_nothing_outside_itself() -> None:
    page = export("flamegraph", golden()).decode()
    assert re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="([^"]*)"', page) == ["data:,"]
    assert "@import" not in page
    assert "url(" not in page.split("<script>")[0]


def test_licences_of_the_libraries_are_in_the_page_and_listed() -> None:
    page = export("flamegraph", golden()).decode()
    vendored = _asset("VENDORED.md")
    assert "Permission to use, copy, modify, and/or distribute this software" in page
    assert "Redistribution and use in source and binary forms" in page
    for name in LIBRARIES:
        version = re.search(rf"\| d3-{name} \| ([0-9.]+) \|", vendored)
        assert version
        assert f"d3-{name}/ v{version.group(1)} Copyright" in page


@pytest.mark.parametrize("name", [*SCRIPTS, "theme"])
def test_scripts_cannot_end_their_element_nor_make_markup(name: str) -> None:
    source = _asset(f"page.{name}.js")
    assert "</script" not in source
    assert "<!--" not in source
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\.html\(|\beval\(", source)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    low, high = sorted([luminance(one), luminance(two)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_every_colour_can_be_read(theme: str) -> None:
    source = _asset("page.palette.js")
    palette = re.search(rf"{theme}: \[(.*?)\]", source, re.S)
    special = re.search(rf"{theme}: \{{(.*?)\}}", source, re.S)
    assert palette
    assert special
    colours = re.findall(r"#[0-9a-f]{6}", palette.group(1))
    named = dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', special.group(1)))
    assert len(colours) == len(set(colours)) == 14
    for colour in [*colours, named["root"], named["thread"], named["unknown"], named["marker"]]:
        assert contrast(colour, named["text"]) >= 4.5, colour
    assert contrast(named["hit"], named["hitText"]) >= 4.5


def in_time(page: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the header of the samples and their columns: time, row, processor and each value."""
    header = data(page)["timeline"]
    found = re.search(rb'<script type="text/plain" id="samples">([A-Za-z0-9+/=]*)</script>', page)
    assert found
    raw = np.frombuffer(gzip.decompress(base64.b64decode(found.group(1))), np.uint8)
    columns = []
    for width, same in zip(header["widths"], header["same"], strict=True):
        columns.append(np.full(header["count"], same, np.int64))
        for byte in range(width):
            columns[-1] += raw[: header["count"]].astype(np.int64) << (8 * byte)
            raw = raw[header["count"] :]
    assert not len(raw)
    return header, columns


@given(profiles(), st.integers(-5, 5), st.data())
def test_samples_have_their_times_stacks_and_values(profile: Profile, early: int, draw: st.DataObject) -> None:
    cpus = draw.draw(
        st.none() | st.lists(st.integers(-1, 300), min_size=len(profile.stack), max_size=len(profile.stack))
    )
    time_ns = profile.time_ns + early * 1_234_567
    profile = replace(profile, time_ns=time_ns, cpu=None if cpus is None else np.array(cpus, np.int32))
    page = export("flamegraph", profile)
    header, (time, row, cpu, *values) = in_time(page)
    assert header["count"] == len(profile.stack)
    samples = data(page)["samples"]
    order = np.lexsort((profile.time_ns, profile.thread))
    at = header["originNs"] + header["tickNs"] * (np.cumsum(time) % header["ticks"])
    row = np.cumsum(row) % max(1, len(samples["leaf"]))
    late = profile.time_ns[order] - profile.start_ns - at
    assert ((late >= 0) & (late < header["tickNs"])).all()
    assert (at + header["tickNs"] <= header["originNs"] + header["spanNs"] + header["tickNs"]).all()
    assert (cpu == (0 if cpus is None else np.array(cpus, np.int64)[order] + 1)).all()
    assert [samples["thread"][each] for each in row] == profile.thread[order].tolist()
    for column, unit, wanted in zip(values, header["units"], samples["values"], strict=True):
        sums = np.zeros(len(wanted), np.int64)
        np.add.at(sums, row, column * unit)
        assert (2 * np.abs(sums - np.array(wanted, np.int64)) <= unit).all() or unit == 1
        assert unit > 1 or sums.tolist() == wanted


def test_difference_of_two_profiles_has_no_time() -> None:
    profile = golden()
    header, columns = in_time(export("flamegraph", replace(profile, values=profile.values - 1)))
    assert header["count"] == 0
    assert all(not len(column) for column in columns)
