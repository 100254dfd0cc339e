"""Tests that ClickHouse within the server's process and a cluster of two servers give equal query results."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyprof.fleet.server.store.clickhouse_engine import migrations
from tests.agent.filled import marked
from tests.server.cluster import cluster, rows_by_server
from tests.server.serving import Served, served, windows

pytestmark = [pytest.mark.matrix, pytest.mark.system]

QUESTIONS: list[tuple[str, dict[str, object]]] = [
    ("services", {"compare": 86400}),
    ("services", {"label.version": "2"}),
    ("labels", {"service": "checkout"}),
    ("timeline", {"service": "checkout", "by": "version", "points": 50}),
    ("timeline", {"points": 7}),
    ("functions", {"limit": 5}),
    ("builds", {}),
    ("profile", {"service": "checkout", "format": "collapsed"}),
    ("profile", {"service": "checkout", "format": "pprof", "label.version": "2"}),
]


def answers(client: Served, until: int) -> list[Any]:
    return [(what, client.question(what, to=until, **words).body) for what, words in QUESTIONS]


def life(version: int, *stores: str) -> dict[str, Any]:
    """Return the results of by_hours for tables of this version, which must be equal in all stores."""

    def one(store: str) -> Any:
        command = [sys.executable, "-m", "tests.server.by_hours", store, str(version)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with ThreadPoolExecutor() as at_once:
        found, *others = at_once.map(one, stores)
    assert all(other == found for other in others)
    assert found["applied"] == [[number, 1] for number in range(1, len(migrations()) + 1)]
    return dict(found)


def check_rolled(found: dict[str, Any]) -> None:
    """Assert that each window counts once, wherever its rows are."""
    assert found["before"] == found["killed"] == found["rolled"]
    assert found["moments"][1:] == [[-1, 0, 60, 120], [36, 60, 120]], "a long span has hours"
    assert (found["not ended"], found["due"], found["due then"]) == (1, [-1, 0, 1, 2], [])


def check_sealed(found: dict[str, Any]) -> None:
    """Assert that late windows count once, too, and that a sealed day has only hours."""
    assert found["rolled"] != found["one late"] != found["late"] == found["late rolled"]
    assert (found["due one late"], found["due late"]) == ([], 1)
    assert found["sealed"] == [False, True, False, True]
    assert found["after first step"] == found["after second step"]
    assert found["after second step"] != found["late of sealed"] == found["late of sealed again"]
    assert (len(found["due days"]), found["due days then"], found["part"]) == (1, [], "nothing_there")
    assert (found["torn"], found["torn then"]) == ([], found["due days"]) == ([], found["due days late"])
    by_windows, by_hours = found["bases"]
    assert by_windows == by_hours, "rows by hours know how much each sample stands for"
    assert by_windows["samples"] < 0.6 * found["samples"]
    assert by_windows["ranges"]["method"] == "wilson"
    before, rolled, sealed, dropped = found["rows"]
    assert before[1] == before[3] == before[5] == 0
    assert (rolled[0], rolled[2], rolled[4], rolled[5]) == (before[0], before[2], before[4], 4)
    assert rolled[1] > 0
    assert (sealed[0], sealed[2]) == (0, 0)
    assert dropped == [0] * 6


def test_both_stores_give_the_same_rows_and_a_cluster_shares_them_out(tmp_path: Path) -> None:
    sent = [each for version in ("1", "2") for each in windows("checkout", 5, version=version, host=f"h{version}")]
    sent += windows("it's \\ other", 2, host="h")
    until = int(time.time()) + 60
    found: list[list[Any]] = []
    with cluster(tmp_path / "cluster") as url:
        for store in (f"chdb://{tmp_path}/chdb", url):
            config = tmp_path / "server.toml"
            config.write_text(f'[server]\nstore = "{store}"\n')
            with served(tmp_path / f"data{len(found)}", "--config", str(config)) as client:
                for each in sent:
                    assert client.push(each).status == 200
                client.until_indexed(len(sent))
                found.append(answers(client, until))
                total = sum(row["amount"] for row in client.question("services").json()["services"])
                assert total == len(sent) * marked().total
        newest = len(migrations())  # later tables are empty before the last migration
        within, of_cluster = f"chdb://{tmp_path}/old", url.replace("/pyprof?", "/old?")
        # each older version in one of the stores, which is enough for the rows that are migrated
        lives = [life(1, f"{within}1"), life(2, of_cluster.replace("/old?", "/old2?"))]
        lives.append(life(newest, f"{within}{newest}", of_cluster.replace("/old?", f"/old{newest}?")))
        for found_of in lives:
            check_rolled(found_of)
        check_sealed(lives[-1])
        assert len(lives[-1]["moments"][0]) > 20, "a short span has times of windows"
        assert all(found_of["whole hours"] == lives[-1]["whole hours"] for found_of in lives)
        assert all(count > 0 for count in rows_by_server(url, "window_samples"))
        assert sum(rows_by_server(url, "windows")) == len(sent)
    for one, other in zip(*found, strict=True):
        assert one == other
