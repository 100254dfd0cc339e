"""Tests of the whole server: accepted and refused pushes, queries, crashes and backups."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

import pyprof
from pyprof.fleet import systemd
from pyprof.fleet.agent.spool import Caps, Spool
from pyprof.fleet.server.authorization import STATUS
from pyprof.fleet.wire.segment_names import day_of
from pyprof.importers import pprof
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.function_costs import costs
from pyprof.model.fleet_loss_reasons import REQUESTS
from pyprof.problem_counters import Diagnostics
from tests import warm
from tests.agent import unit_filter
from tests.agent.filled import marked, segment
from tests.server.serving import Served, name_of, served, windows
from tests.small_disk import only_root
from tests.support import build, need
from tests.survival.servers import kill_servers

pytestmark = pytest.mark.system

KILLS = 2
"""Number of kills. `make test-kills` has a hundred."""
PROGRAMS = Path(__file__).parents[1] / "programs"
SYMBOLS = f"MODULE Linux x86_64 01 x\nINFO CODE_ID {'CD' * 20}\nINFO LOAD 0 0 10\n".encode()
HOSTILE = "'; DROP TABLE samples; -- \\' <script> ; /../"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with served(folder / "data") as client:
        for version, count in (("1", 2), ("2", 1)):
            for each in windows("checkout", count, version=version, host=f"h{version}"):
                assert client.push(each).status == 200
        for each in windows(HOSTILE, 1, host=HOSTILE):
            assert client.push(each).status == 200
        client.until_indexed(4)
        yield client


def test_services_cost_what_their_windows_cost_and_a_week_ago_is_unknown(server: Served) -> None:
    found = {row["service"]: row for row in server.question("services", compare=7 * 86400).json()["services"]}
    assert found["checkout"]["amount"] == 3 * marked().total
    assert (found["checkout"]["windows"], found["checkout"]["hosts"], found["checkout"]["before"]) == (3, 2, None)
    assert found[HOSTILE]["amount"] == marked().total


def test_service_that_was_recorded_for_a_part_of_the_span_has_its_full_rate(server: Served) -> None:
    """Query windows of one minute in a span of 56 years: rates are relative to the time that windows cover."""
    found = {row["service"]: row for row in server.question("services", compare=7 * 86400).json()["services"]}
    assert found[HOSTILE]["recorded"] == 60
    per_host = marked().total / 60
    assert found[HOSTILE]["rate"] == pytest.approx(per_host)
    assert found["checkout"]["rate"] == pytest.approx(2 * per_host), "the rates of two hosts are added"
    assert found["checkout"]["rate_before"] is None


def test_host_and_version_without_a_window_have_a_gap_and_not_zero(server: Served) -> None:
    """Query a host and a version with two windows, and others with the later window only."""
    span = {"from": int(time.time()) - 600, "to": int(time.time()) + 60, "points": 11}
    for label in ("host", "version"):
        answer = server.question("timeline", service="checkout", by=label, **span).json()
        lines = {line["value"]: line["amounts"] for line in answer["series"]}
        one, two = sorted(len([each for each in amounts if each is not None]) for amounts in lines.values())
        assert (one in (1, 2), two) == (True, one + 1), "a window of a step lies in one step or in parts of two"
        assert all(each is None or each > 0 for amounts in lines.values() for each in amounts)
    for chosen in ({"label.host": "h2"}, {"label.version": "2"}):
        (line,) = server.question("timeline", service="checkout", **chosen, **span).json()["series"]
        assert [each > 0 for each in line["amounts"] if each is not None] in ([True], [True, True])


def test_segment_sent_twice_counts_once(server: Served) -> None:
    (one,) = windows("twice", 1)
    assert [server.push(one).status for _ in range(3)] == [200, 409, 409]
    server.until_indexed(1, service="twice")
    time.sleep(1)
    server.until_indexed(1, service="twice")


def test_profile_is_the_windows_together_with_how_each_frame_was_found(server: Served, tmp_path: Path) -> None:
    expected = pprof.read_pprof(windows("checkout", 1)[0].data, "checkout")
    for format in ("pprof", "recording"):
        answer = server.question("profile", service="checkout", format=format)
        path = tmp_path / ("x.pb.gz" if format == "pprof" else "x.pyprof")
        path.write_bytes(answer.body)
        found = pyprof.load(path)
        assert found.total == 3 * expected.total
        own = {cost.name: cost.own for cost in costs(found).functions}
        assert own == {cost.name: 3 * cost.own for cost in costs(expected).functions}
        assert {frame.trust for frame in found.frames} == {frame.trust for frame in expected.frames}
        marks = {(frame.title, frame.mark and frame.mark.kind) for frame in expected.frames}
        assert {(frame.title, frame.mark and frame.mark.kind) for frame in found.frames} == marks


def test_labels_choose_samples(server: Served) -> None:
    assert server.question("labels", service="checkout").json()["labels"] == {
        "host": ["h1", "h2"],
        "version": ["1", "2"],
    }
    one = server.question("timeline", service="checkout", by="version").json()
    sums = {line["value"]: sum(amount or 0 for amount in line["amounts"]) for line in one["series"]}
    assert sums == {"1": 2 * marked().total, "2": marked().total}
    answer = server.question("profile", service="checkout", format="collapsed", **{"label.version": "2"})
    assert sum(int(line.rsplit(" ", 1)[1]) for line in answer.body.decode().splitlines()) == marked().values[:, 0].sum()


def test_labels_choose_services_with_the_amount_of_their_samples(server: Served) -> None:
    def amounts(**words: str) -> dict[str, tuple[int, int, int, float]]:
        rows = server.question("services", **{f"label.{name}": value for name, value in words.items()}).json()
        return {
            row["service"]: (row["amount"], row["hosts"], row["windows"], round(row["rate"]))
            for row in rows["services"]
        }

    total = marked().total
    assert amounts(host="h1")["checkout"][:3] == (2 * total, 1, 2)
    assert amounts(host="h1")["checkout"][3] == round(total / 60)
    assert amounts(host="h2", version="2") == {"checkout": (total, 1, 1, round(total / 60))}
    assert amounts(host="h1", version="2") == {}


def test_services_are_in_the_order_of_their_rates_and_count_windows_without_a_host(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        for each in (*windows("long", 3, host="a"), *windows("two", 1, host="a"), *windows("two", 1, host="b")):
            assert client.push(each).status == 200
        assert client.push(windows("unnamed", 1)[0]).status == 200
        client.until_indexed(6)
        rows = client.question("services").json()["services"]
    assert [(row["service"], row["hosts"], row["windows_without_host"]) for row in rows] == [
        ("two", 2, 0),
        ("long", 1, 0),
        ("unnamed", 1, 1),
    ]


def test_text_of_a_client_is_never_sql(server: Served) -> None:
    for words in ({"service": HOSTILE}, {"type": HOSTILE}):
        for what in ("services", "labels", "timeline", "builds"):
            assert server.question(what, **words).status == 200, (what, words)
    assert server.question("timeline", **{"service": "checkout", "label.host": HOSTILE}).status == 200
    assert server.question("profile", service=HOSTILE, format="collapsed").status == 200
    assert server.question("labels", service=HOSTILE).json()["labels"]["host"] == [HOSTILE]
    assert server.question("services").json()["services"], "all tables are there"


def test_functions_name_their_services_and_what_is_left_out_is_told(server: Served) -> None:
    found = server.question("functions", limit=2).json()
    assert found["total"] == sum(row["amount"] for row in server.question("services").json()["services"])
    dearest = found["functions"][0]
    assert "checkout" in dearest["services"]
    assert found["rest"]["count"] > 0
    shown = sum(row["own"] for row in found["functions"])
    whole = sum(cost.own for cost in costs(marked()).functions) * found["total"] // marked().total
    assert shown + found["rest"]["amount"] == whole


def test_functions_and_profiles_say_how_far_shares_are_known(server: Served, tmp_path: Path) -> None:
    found = server.question("functions", service="checkout").json()
    for row in found["functions"]:
        for part in ("own", "total"):
            low, high = row[f"{part}_range"]
            assert 0 <= low <= row[part] / found["total"] <= high <= 1
            assert high - low < 1
    (tmp_path / "x.pyprof").write_bytes(server.question("profile", service="checkout", format="recording").body)
    loaded = pyprof.load(tmp_path / "x.pyprof")
    assert f"by {found['samples']:,} samples" in str([note.text for note in loaded.summary.notes])


def test_comparison_of_two_builds_is_a_page_or_data(server: Served) -> None:
    sides = {}
    for side, version in (("a", "1"), ("b", "2")):
        words = {"from": 0, "to": int(time.time()) + 60, "service": "checkout", "label.version": version}
        sides.update({f"{side}.{name}": word for name, word in words.items()})
    assert b"<!DOCTYPE html>" in server.question("diff", format="html", **sides).body
    found = server.question("diff", format="json", **sides).json()
    assert found["whole"]["before"] == pytest.approx(found["whole"]["after"], rel=1e-6), "costs are by time in windows"
    assert server.question("diff", **{**sides, "b.type": "offcpu"}).json()["reason"] == "bad_question"


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/api/v1/nothing?from=1&to=2", None, "no_such_page"),
        ("/assets/page.html", None, "no_such_page"),
        ("/elsewhere", None, "no_such_page"),
        ("/", b"x", "no_such_page"),
        ("/api/v1/services?from=x&to=2", None, "bad_question"),
        ("/api/v1/services?from=3&to=2", None, "bad_question"),
        ("/api/v1/services?from=nan&to=2", None, "bad_question"),
        ("/api/v1/services?from=1&to=1e300", None, "bad_question"),
        ("/api/v1/services?from=1&to=2&limit=1001", None, "bad_question"),
        (f"/api/v1/services?from=1&to=2&service={'x' * 1001}", None, "bad_question"),
        ("/api/v1/services?from=1&to=2&servce=checkout", None, "bad_question"),
        ("/api/v1/builds?from=1&to=2&label.version=1", None, "bad_question"),
        ("/api/v1/timeline?a.from=1&a.to=2", None, "bad_question"),
        ("/api/v1/diff?from=1&to=2", None, "bad_question"),
        ("/api/v1/profile?from=1&to=2&service=absent", None, "nothing_there"),
        ("/api/v1/profile?from=1&to=2&format=absent", None, "bad_question"),
        ("/api/v1/segments/2026-01-01/x/1-00.pb.gz", b"x", "wrong_name"),
        ("/api/v1/segments/2026-01-01/%2e%2e/x", b"x", "wrong_name"),
    ],
)
def test_wrong_requests_are_refused_by_name(path: str, body: bytes | None, reason: str, server: Served) -> None:
    answer = server.ask(path, body)
    assert (answer.status, answer.json()["reason"]) == (STATUS[reason], reason)


def test_bad_segments_leave_nothing(server: Served) -> None:
    (good,) = windows("bad", 1)
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", mtime=0) as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    for data in (b"", b"\x1f\x8bjunk", good.data[: len(good.data) // 2], bomb.getvalue(), b"\x0a\x02\x08\x01"):
        answer = server.ask(f"/api/v1/segments/{good.name.day}/bad/{good.name.name}", data)
        assert (answer.status, answer.json()["reason"]) == (400, "bad_segment")
    for age_s, reason in ((20 * 86400.0, "too_old"), (-2 * 86400.0, "too_new")):
        name = name_of("bad", age_s)
        answer = server.ask(f"/api/v1/segments/{name.day}/bad/{name.name}", good.data)
        assert (answer.status, answer.json()["reason"]) == (422, reason)
    (labelled,) = windows("bad", 1, service="another")
    for name, data in (
        (labelled.name, labelled.data),
        (replace(good.name, end_ns=(past := good.name.end_ns - 2 * 86_400 * 10**9), day=day_of(past)), good.data),
    ):
        answer = server.ask(f"/api/v1/segments/{name.day}/bad/{name.name}", data)
        assert (answer.status, answer.json()["reason"]) == (422, "wrong_name")
    assert server.question("services", service="bad").json()["services"] == []
    assert 'refused_total{reason="bad_segment"} 5' in server.ask("/metrics").body.decode()


def test_large_body_is_refused_before_it_is_read(server: Served) -> None:
    name = name_of("large")
    path = f"/api/v1/segments/{name.day}/large/{name.name}"
    for length, sent in ((1 << 40, b""), (None, bytes((16 << 20) + 1))):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.putrequest("POST", path)
        connection.putheader(*(("Content-Length", str(length)) if length else ("Transfer-Encoding", "chunked")))
        connection.endheaders()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(b"%x\r\n%b" % (len(sent), sent) if sent else b"")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (413, "body_too_large")
        connection.close()


def test_server_without_tenants_answers_no_page_of_elsewhere(server: Served) -> None:
    assert server.ask("/api/v1/services?from=1&to=2", Host="evil.example").status == 401
    assert server.ask("/api/v1/services?from=1&to=2", Host=f"localhost:{server.port}").status == 200


def test_page_and_its_scripts_come_from_the_server_alone(server: Served) -> None:
    page = server.ask("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    names = [part.split('"')[0] for part in page.body.decode().split("/assets/")[1:]]
    assert len(names) > 10
    for name in names:
        assert server.ask(f"/assets/{name}").status == 200, name
    assert b"http" not in page.body.replace(b"http-equiv", b"")


def test_each_refusal_has_a_status() -> None:
    assert STATUS.keys() == {reason.name for reason in REQUESTS}


def test_tokens_are_for_one_role_and_one_tenant(tmp_path: Path) -> None:
    lines = []
    for tenant in ("one", "two"):
        lines += ["[[tenant]]", f'name = "{tenant}"']
        for role in ("write", "read"):
            path = tmp_path / f"{tenant}.{role}"
            path.write_text(f"{tenant}-{role}-0123456789abcdef\n")
            path.chmod(0o600)
            lines.append(f'{role}_token_file = "{path}"')
    config = tmp_path / "server.toml"
    config.write_text("\n".join(lines))
    with served(tmp_path / "data", "--config", str(config)) as client:
        (one,) = windows("secret", 1)
        for token, status in (("", 401), ("wrong", 401), ("one-read-0123456789abcdef", 403), ("é", 401)):
            client.token = token.encode().decode("latin-1")
            assert client.push(one).status == status, token
            assert client.ask(f"/api/v1/symbols/{'cd' * 20}", b"").status == status, token
        client.token = "one-write-0123456789abcdef"
        assert client.push(one).status == 200
        assert client.ask(f"/api/v1/symbols/{'cd' * 20}", SYMBOLS).status == 200
        assert [path.parent.name for path in tmp_path.rglob("*.sym")] == ["one"]
        assert client.question("services").json()["reason"] == "wrong_role"
        client.token = "one-read-0123456789abcdef"
        client.until_indexed(1)
        client.token = "two-read-0123456789abcdef"
        assert client.question("services").json()["services"] == []


def test_symbols_that_are_uploaded_name_the_code_of_their_build(server: Served, tmp_path: Path) -> None:
    program = build(PROGRAMS / "c_locks.c", tmp_path / "locks", "-g", "-Wl,--build-id", "-pthread")
    text = warm.run("symbols", str(program), "-q").stdout.split("\n")
    (build_id,) = (line.split()[2].lower() for line in text if line.startswith("INFO CODE_ID"))
    start, name = next((int(line.split()[1], 16), line.split()[4]) for line in text if line.startswith("FUNC"))
    found = marked()
    first, address = (int(part, 16) for part in next(line for line in text if " LOAD 1000 " in line).split()[2:4])
    module = replace(found.modules[2], build_id=build_id, offset=first)
    at = module.start + start + 1 - address
    frames = tuple(
        replace(each, pc=at, lookup=at, rel=at - module.start) if each.title == "libplugin.so+0x1234" else each
        for each in found.frames
    )
    (sent,) = windows("stripped", 1, replace(found, modules=(*found.modules[:2], module), frames=frames))
    assert server.push(sent).status == 200
    server.until_indexed(1, service="stripped")

    def asked() -> tuple[bool, list[bool]]:
        rows = server.question("builds", service="stripped").json()["builds"]
        shown = server.question("profile", service="stripped", format="collapsed").body.decode()
        own = [row["symbols"] for row in rows if row["build_id"] == build_id]
        return any(name in line.replace(" ", ";").split(";") for line in shown.splitlines()), own

    assert asked() == (False, [False])
    done = warm.run("symbols", str(program), "-q", "--upload", f"http://127.0.0.1:{server.port}/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert asked() == (True, [True])
    absent = warm.run("symbols", str(program), "-q", "--upload", f"http://127.0.0.1:{server.port}/absent")
    assert absent.returncode == 1
    assert "refused it: status 404" in absent.stderr


def test_answer_of_a_server_that_stood_still_has_the_present_date(tmp_path: Path) -> None:
    """An agent on the same host took the old date of a busy server for that of a wrong clock."""
    with served(tmp_path) as client, ThreadPoolExecutor(1) as pool:
        assert client.process is not None
        for _ in range(3):
            client.process.send_signal(signal.SIGSTOP)
            try:
                asked = pool.submit(client.ask, "/healthz")
                time.sleep(3)
                before_s = int(time.time())
            finally:
                client.process.send_signal(signal.SIGCONT)
            date = asked.result().headers["date"]
            assert parsedate_to_datetime(date).timestamp() >= before_s


def test_killed_server_loses_no_window_that_it_acknowledged_and_counts_none_twice(tmp_path: Path) -> None:
    sent = kill_servers(tmp_path / "data", KILLS, random.Random(20))
    assert sent.acknowledged


def test_full_disk_is_refused_with_507_and_what_was_taken_stays(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "segments"
    folder.mkdir(parents=True)
    mount = 'mount -t tmpfs -o size=256k,mode=750 full "$0" && exec "$@"'
    alone = (need("unshare"), "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
    sent = windows("full", 100)
    with served(tmp_path / "data", prefix=(*alone, "sh", "-c", mount, str(folder))) as client:
        statuses = [client.push(each).status for each in sent]
        taken = [each for each, status in zip(sent, statuses, strict=True) if status == 200]
        refused = [each for each, status in zip(sent, statuses, strict=True) if status == 507]
        assert len(taken) + len(refused) == len(sent)
        assert taken
        assert client.push(refused[-1]).json()["reason"] == "disk_full"
        client.until_indexed(len(taken))
        (row,) = client.question("services").json()["services"]
        assert row["amount"] == len(taken) * marked().total
        assert client.process is not None
        there = Path(f"/proc/{client.process.pid}/root") / folder.relative_to("/")
        assert {path.name for path in there.rglob("*.pb.gz")} == {each.name.name for each in taken}
        assert not list(there.rglob("*.part"))
        next(there.rglob("*.pb.gz")).unlink()
        assert client.push(refused[-1]).status == 200, "there is room again"


def test_unit_runs_the_server_that_was_asked_for(tmp_path: Path) -> None:
    from tests.warm import run

    config, data = tmp_path / "a %h server.toml", tmp_path / "data"
    config.write_text("")
    done = run("server", "--config", str(config), "--data", str(data), "--print-unit")
    lines = done.stdout.splitlines()
    (command,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(command)]
    assert words[1:] == ["-m", "pyprof", "server", "--log", "json", "--data", str(data), "--config", str(config)]
    assert f"ReadWritePaths={data}" in lines
    assert {"CapabilityBoundingSet=", "NoNewPrivileges=yes", "User=pyprof-server"} <= set(lines)
    unit = tmp_path / "pyprof-server.service"
    unit.write_text(done.stdout.replace("pyprof-server\n", "root\n"))
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")
    recipe = (Path(__file__).resolve().parents[2] / "examples/server/Containerfile").read_text()
    (image,) = [json.loads(line.removeprefix("CMD ")) for line in recipe.splitlines() if line.startswith("CMD ")]
    image[1] = str(config)
    assert run("server", *image, "--check").returncode == 0


@only_root
def test_server_takes_windows_and_answers_with_what_its_unit_allows(tmp_path: Path) -> None:
    need("systemd-analyze")
    unit = tmp_path / "pyprof-server.service"
    unit.write_text(systemd.server_unit(["pyprof"], ()))
    with served(tmp_path / "data", prefix=(sys.executable, unit_filter.__file__, str(unit))) as client:
        (each,) = windows("web", 1)
        assert client.push(each).status == 200
        client.until_indexed(1)
        assert client.ask("/readyz").status == 200
        assert client.process is not None
        assert "Seccomp:\t2\n" in Path(f"/proc/{client.process.pid}/status").read_text()


def test_server_tells_systemd_that_it_listens_and_that_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with served(tmp_path / "data"):
            assert heard.recv(100) == b"READY=1"
        assert heard.recv(100) == b"STOPPING=1"


def test_copy_that_was_made_while_windows_came_is_restored(tmp_path: Path) -> None:
    """Copy the data during pushes: the copy has everything acknowledged before, and a part of the rest."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    copy.mkdir(mode=0o750)
    with served(data) as client, ThreadPoolExecutor(1) as sender:
        for each in windows("kept", 3):
            assert client.push(each).status == 200
        assert client.ask(f"/api/v1/symbols/{'cd' * 20}", SYMBOLS).status == 200
        sent = [sender.submit(client.push, each) for each in windows("meanwhile", 40)]
        subprocess.run(["cp", "-r", str(data / "segments"), str(data / "symbols"), str(copy)], check=False)
        assert {answer.result().status for answer in sent} == {200}
        client.until_indexed(3, service="kept")
        before = [client.question(what, service="kept").json() for what in ("functions", "builds", "labels")]
    (one,) = windows("half", 1)
    half = copy / "segments" / "default" / one.name.day / "kept" / f".{one.name.name}.1.part"
    half.write_bytes(one.data[:100])
    done = warm.run("server", "--data", str(copy), "--rebuild")
    count = int(done.stdout.split()[0])
    assert 3 <= count <= 43, done
    with served(copy) as client:
        client.until_indexed(3, service="kept")
        client.until_indexed(count - 3, service="meanwhile")
        assert [client.question(what, service="kept").json() for what in ("functions", "builds", "labels")] == before
    assert (copy / "symbols" / "default" / f"{'cd' * 20}.sym").read_bytes() == SYMBOLS


def test_agent_sends_windows_again_that_a_restored_server_lacks(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    spool = Spool(str(tmp_path / "spool"), Caps(), Diagnostics())
    spool.open()
    config = tmp_path / "agent.toml"
    command = ("agent", "resend", "--config", str(config), "--spool", str(tmp_path / "spool"), "--since", "1h")
    sent = [*windows("web", 2), segment(marked(), "web", time.time_ns() + 1800 * 10**9)]  # the clock was ahead
    assert spool.store_window(sent)
    with served(tmp_path / "data") as client:
        url = f"http://127.0.0.1:{client.port}"
        config.write_text(f'[[push]]\nname = "fleet"\ntype = "pyprof"\nurl = "{url}"\n[[rule]]\nname = "*"\n')
        assert client.push(sent[1]).status == 200
        for counts in ("2 sent, 1 there already", "0 sent, 3 there already"):
            told = f"fleet: 3 segments since 1h to send\nfleet: {counts}\n"
            assert warm.run(*command).stdout == told
        client.until_indexed(3, service="web")
    ended = warm.run(*command)
    assert ended.returncode != 0
    assert "fleet took 0 of 3 segments: unreachable" in ended.stderr
    config.write_text('[[rule]]\nname = "*"\n')
    assert "no sink of the types" in warm.run(*command).stderr


def test_windows_sent_again_after_a_restore_count_once(tmp_path: Path) -> None:
    """Put older files back below a newer database and on an empty host, and push what came after the copy again."""
    data, copy, empty = (tmp_path / name for name in ("data", "copy", "empty"))
    kept, later = windows("kept", 3), windows("later", 4)
    with served(data) as client:
        assert {client.push(each).status for each in kept} == {200}
        shutil.copytree(data / "segments", copy)
        assert {client.push(each).status for each in later} == {200}
        client.until_indexed(4, service="later")
    shutil.rmtree(data / "segments")
    empty.mkdir(mode=0o750)
    for folder in (data, empty):
        shutil.copytree(copy, folder / "segments")
    for folder, in_database in ((data, 4), (empty, 0)):
        with served(folder, "--log", "json") as client:
            client.until_indexed(3, service="kept")
            client.until_indexed(in_database, service="later")
            assert f"pyprof_server_windows_without_file {in_database}" in client.ask("/metrics").body.decode()
            health = client.ask("/healthz")
            assert (health.status, b"files_missing" in health.body) == (200, bool(in_database))
            assert {client.push(each).status for each in kept} == {409}
            assert {client.push(each).status for each in later} == {200}
            client.until_indexed(4, service="later")
            assert {client.push(each).status for each in later} == {409}
            assert client.process is not None
            client.process.terminate()
            assert client.process.stderr is not None
            lines = [json.loads(line) for line in client.process.stderr]
            said = [line["windows"] for line in lines if line["event"] == "windows without a file"]
            assert said == ([in_database] if in_database else [])
        with served(folder) as client:
            client.until_indexed(7)
            assert "pyprof_server_windows_without_file 0" in client.ask("/metrics").body.decode()
