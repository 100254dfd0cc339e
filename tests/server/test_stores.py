"""The same questions have the same answers from ClickHouse in the server's process and from a cluster of two."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyprof.server.tables import migrations
from tests.agent.filled import marked
from tests.server.cluster import cluster, rows_by_server
from tests.server.serving import Served, served, windows

QUESTIONS: list[tuple[str, dict[str, object]]] = [
    ("services", {"compare": 86400}),
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


def check_old(version: int, *stores: str) -> None:
    """A store that this version of the tables made has the same answers after the later migrations. So has an old day
    by hours, which are few rows, and windows that come later count.
    """
    runs = []
    for store in stores:
        done = subprocess.run(
            [sys.executable, "-m", "tests.server.by_hours", store, str(version)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    found, other = runs
    assert found == other
    assert found["of version"] == found["before"]
    assert found["applied"] == [[number, 1] for number in range(1, len(migrations()) + 1)]
    assert found["before"] == found["rolled"] != found["late"] == found["late rolled"]
    assert (found["due before"], found["due"], found["late due"], found["part"]) == ([], [], True, "nothing_there")
    (samples, builds, windows, _), (fewer_samples, fewer_builds, same, rolled), *_, dropped = found["rows"]
    assert fewer_samples < samples / 4
    assert fewer_builds < builds / 10
    assert (same, rolled) == (windows, 1)
    assert dropped == [0, 0, 0, 0]


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
        for version in range(1, len(migrations())):
            check_old(version, f"chdb://{tmp_path}/old{version}", url.replace("/pyprof?", f"/old{version}?"))
        assert all(count > 0 for count in rows_by_server(url, "samples"))
        assert sum(rows_by_server(url, "windows")) == len(sent)
    for one, other in zip(*found, strict=True):
        assert one == other
