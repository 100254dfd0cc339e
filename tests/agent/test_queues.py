"""Tests of the queues of sinks, and of forgetting a sink that is no longer configured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.fleet.agent.spool import Caps, Spool
from pyprof.fleet.agent.spool_status import forget, queues
from pyprof.fleet.toml_config_files import BadConfig
from pyprof.problem_counters import Diagnostics
from tests.agent.filled import MINUTE_NS, segment
from tests.exporters.profiles import golden
from tests.warm import run

END = 1_700_000_040 * 10**9


def filled(folder: Path) -> list[int]:
    """Fill a spool that has two sinks, and return the sizes of its segments in bytes."""
    folder.mkdir(exist_ok=True)
    segments = [segment(golden(), "web", END + minute * MINUTE_NS) for minute in range(3)]
    spool = Spool(str(folder), Caps(age_s=1e9), Diagnostics(), sinks=["far", "near"])
    spool.open()
    spool.store_window(segments)
    spool.sent("near", next(spool.queued("near")))
    return [len(each.data) for each in segments]


def test_queue_that_is_forgotten_goes_and_nothing_else(tmp_path: Path) -> None:
    first, *others = filled(tmp_path)
    found = [(queue.sink, queue.segments, queue.bytes, queue.oldest_ns) for queue in queues(str(tmp_path))]
    assert found == [("far", 3, first + sum(others), END), ("near", 2, sum(others), END + MINUTE_NS)]
    before = sorted(tmp_path.rglob("2*/web/*"))
    assert forget(str(tmp_path), "far") == 3
    assert [queue.sink for queue in queues(str(tmp_path))] == ["near"]
    assert sorted(tmp_path.rglob("2*/web/*")) == [path for path in before if "far" not in path.parts]
    other = tmp_path / "queue" / "near" / "2023-11-14" / "web" / "notes.txt"
    other.write_text("somebody's")
    assert forget(str(tmp_path), "near") == 2
    assert other.read_text() == "somebody's"
    assert len(list(tmp_path.glob("2*/web/*"))) == 3
    for name in ("far", "..", "../queue/near", "near/2023-11-14"):
        with pytest.raises(UsageError, match="no queue"):
            forget(str(tmp_path), name)


def test_status_lists_waiting_segments_and_forgets_only_former_sinks(tmp_path: Path) -> None:
    filled(tmp_path / "spool")
    config = tmp_path / "agent.toml"
    config.write_text('[[push]]\nname = "near"\ntype = "folder"\npath = "/mnt"\n[[rule]]\nname = "*"\n')
    where = ["agent", "status", "--spool", str(tmp_path / "spool")]
    said = run(*where, "--config", str(config)).stdout.splitlines()
    assert [line.split()[6:] for line in said[-2:]] == [
        ["far", "not", "configured:", "pyprof", "agent", "status", "--forget", "far"],
        ["near"],
    ]
    assert "not configured" not in run(*where).stdout
    assert "--config FILE" in run(*where, "--forget", "far").stderr
    assert "near is still configured" in run(*where, "--config", str(config), "--forget", "near").stderr
    assert run(*where, "--config", str(config), "--forget", "far").stdout.startswith("3 segments waited for far")
    assert "far" not in run(*where, "--config", str(config)).stdout


def test_status_shows_errors_of_the_configuration_and_then_the_spool(tmp_path: Path) -> None:
    filled(tmp_path / "spool")
    config = tmp_path / "agent.toml"
    config.write_text(f'[spool]\npath = "{tmp_path}/spool"\n[windows]\nevery = "soon"\n[[rule]]\nname = "*"\n')
    said = run("agent", "status", "--config", str(config))
    assert said.returncode == BadConfig.exit_code
    lines = said.stdout.splitlines()
    assert lines[0].startswith(f"{config}: line 4: every")
    assert lines[1].startswith("agent: not running: ")
    assert lines[-1].endswith("near")
    document = json.loads(run("agent", "status", "--config", str(config), "--json").stdout)
    assert [each["line"] for each in document["configuration_errors"]] == [4]
    assert document["spool"]["path"] == f"{tmp_path}/spool"
    assert "line 4" in run("agent", "status", "--config", str(config), "--forget", "far").stderr
