"""Tests that the examples for Kubernetes and Grafana in examples/agent match the current agent."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from pyprof.fleet import agent, systemd
from pyprof.fleet.agent import config
from pyprof.fleet.agent.metrics import COUNTERS, GAUGES, PREFIX, PUSHES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/agent"


def _documents() -> dict[str, Any]:
    found = {document["kind"]: document for document in yaml.safe_load_all((EXAMPLES / "daemonset.yaml").read_text())}
    assert found.keys() == {"Namespace", "ConfigMap", "DaemonSet"}
    return found


def test_agent_of_a_cluster_takes_its_configuration_and_command(tmp_path: Path) -> None:
    documents = _documents()
    (container,) = documents["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    ((name, text),) = documents["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    arguments = [word.replace("/etc/pyprof", str(tmp_path)) for word in container["args"]]
    assert str(tmp_path / name) in arguments
    checked = subprocess.run(
        [sys.executable, "-m", "pyprof", "agent", *arguments, "--check"], capture_output=True, text=True, timeout=30
    )
    assert checked.returncode == 0, checked.stderr
    image = (EXAMPLES / "Containerfile").read_text()
    assert json.dumps(container["args"]) in image, "the image by itself does the same"


def test_pod_of_a_cluster_has_what_the_agent_needs_and_no_more() -> None:
    documents = _documents()
    pod = documents["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    said = config.parse(documents["ConfigMap"]["data"]["agent.toml"], "agent.toml")
    security = container["securityContext"]
    assert security["capabilities"] == {
        "drop": ["ALL"],
        "add": [name.removeprefix("CAP_") for name in systemd.AGENT_CAPABILITIES],
    }
    assert security["readOnlyRootFilesystem"]
    assert pod["hostPID"]
    probes = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert [(probe["port"], probe["path"]) for probe in probes] == [
        (said.values.port, "/healthz"),
        (said.values.port, "/readyz"),
    ]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == volumes
    assert str(said.values.path).startswith(mounts["spool"] + "/")
    assert "cpu" not in container["resources"]["limits"], "a throttled agent would stand still in the midst of a stop"


def test_dashboard_shows_each_number_of_the_agent_once() -> None:
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    shown = [name for expression in asked for name in re.findall(rf"{PREFIX}\w+", expression)]
    ends = {"counter": "_total", "gauge": ""}
    named = [f"{PREFIX}{metric.name}{ends[metric.kind]}" for metric in (*COUNTERS, *GAUGES, *PUSHES)]
    assert sorted(shown) == sorted(named)
    labels = {metric.labels[0] for metric in COUNTERS} | {"instance", "sink", "type"}
    grouped = [by.split(", ") for expression in asked for by in re.findall(r"by \(([^)]*)\)", expression)]
    assert grouped
    assert set(itertools.chain(*grouped)) <= labels


def test_panels_of_the_dashboard_stand_beside_one_another() -> None:
    places = [panel["gridPos"] for panel in json.loads((EXAMPLES / "grafana.json").read_text())["panels"]]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert taken
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


def test_each_metric_has_a_place_that_produces_it() -> None:
    sources = "".join(path.read_text() for path in Path(agent.__path__[0]).rglob("*.py"))
    produced = re.sub(r"MetricKind\(\s*\"\w+\"", "", sources)
    names = [metric.name for metric in (*COUNTERS, *GAUGES, *PUSHES) if metric.name != "failing"]  # has conditions
    assert len(names) > 40
    assert [name for name in names if f'"{name}"' not in produced] == []
