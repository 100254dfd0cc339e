"""Tests of single parts of the server: frames as text, tables, settings and files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import UsageError
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.server import config
from pyprof.fleet.server.ingest.segment_files import DiskFull, SegmentFiles
from pyprof.fleet.server.ingest.segment_to_rows import frame_of, hash_of, module_of, text_of
from pyprof.fleet.server.store import clickhouse_engine
from pyprof.fleet.server.store.clickhouse_engine import (
    PASSWORD_VARIABLE,
    Dialect,
    HttpEngine,
    StoreAddress,
    StoreError,
    address,
    literal,
)
from pyprof.fleet.toml_config_files import BadConfig
from pyprof.fleet.wire.segment_names import PART
from pyprof.importers import pprof
from pyprof.lazy_dataclasses import replace
from tests import warm
from tests.agent.filled import marked
from tests.server.serving import name_of, windows


@pytest.mark.parametrize(("code", "names_setting"), [(193, True), (194, True), (516, True), (60, False)])
def test_refused_password_of_the_store_names_its_setting(code: int, names_setting: bool) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()
            self.wfile.write(f"Code: {code}, e.displayText() = DB::Exception".encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refuses) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        with pytest.raises(StoreError, match=f"Code: {code}") as refused:
            HttpEngine(StoreAddress("clickhouse", hosts=(("127.0.0.1", store.server_port),)), 14)
        store.shutdown()
    assert ("server.store_password_file" in refused.value.hint) == names_setting


def test_error_that_ends_a_command_is_a_line_of_its_json_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (("server", "--data", str(tmp_path / "file")), ("agent", "--spool", str(tmp_path / "file"))):
        ended = warm.run(*command, "--log", "json")
        (line,) = ended.stderr.splitlines()
        found = json.loads(line)
        assert (ended.returncode, found["level"], found["event"]) == (1, "error", "failed")
        assert "cannot be used" in found["error"]
        assert found["hint"] == "choose another folder"


def test_frame_as_a_text_says_all_that_a_segment_says() -> None:
    profile = pprof.read_pprof(windows("x", 1)[0].data, "x")
    texts = [text_of(frame, profile.modules) for frame in profile.frames]
    assert len(set(texts)) == len(texts) > 10
    for frame, text in zip(profile.frames, texts, strict=True):
        module = module_of(text)
        found = frame_of(text, frame.module)
        assert (found.kind, found.trust, found.title, found.mark) == (frame.kind, frame.trust, frame.title, frame.mark)
        assert found.lines == frame.lines
        assert (module and (module.path, module.build_id)) == (
            (profile.modules[frame.module].path, profile.modules[frame.module].build_id) if frame.module >= 0 else None
        )


@given(st.text())
def test_any_text_is_a_frame(text: str) -> None:
    assert frame_of(text, -1).title is not None
    module_of(text)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_two_stacks_have_one_hash_only_if_they_are_equal(one: list[str], other: list[str]) -> None:
    assert (hash_of(one) == hash_of(other)) == (one == other)


def test_name_with_dividing_characters_stays_one_name() -> None:
    frame = pprof.read_pprof(windows("x", 1)[0].data, "x").frames[0]
    odd = replace(frame, title="a\x1fb\x1ec\x1dd\0e", module=-1)
    assert frame_of(text_of(odd, ()), -1).title == "a?b?c?d?e"


@given(st.text())
def test_literal_ends_where_it_ends(text: str) -> None:
    found = literal(text)
    inside, at = found[1:-1], 0
    while at < len(inside):
        assert inside[at] != "'"
        at += 2 if inside[at] == "\\" else 1
    assert at == len(inside), "the last quote is not escaped"


def test_tables_of_a_cluster_have_a_second_one_sharded_by_the_stack() -> None:
    all_of = clickhouse_engine.migrations()
    assert [each.number for each in all_of] == list(range(1, len(all_of) + 1))
    local, cluster, old = (
        [text for each in all_of for text in each.statements(dialect)]
        for dialect in (Dialect(), Dialect("c"), Dialect(old=True))
    )
    made, made_of_cluster = ([each for each in found if each.startswith("CREATE")] for found in (local, cluster))
    dropped = {word.split()[4] for word in local if word.startswith("DROP")}
    assert len(made) == len(made_of_cluster) / 2
    named = {each.split()[5] for each in made}
    assert named - {name for name in dropped if name not in clickhouse_engine.NAMES} == set(clickhouse_engine.NAMES)
    assert "Distributed(c, currentDatabase(), window_samples, stack)" in " ".join(cluster)
    assert "Distributed(c, currentDatabase(), stacks, stack)" in " ".join(cluster)
    assert not any("{" in statement for statement in (*local, *cluster))
    assert all(each.split()[2].endswith("_all") for each in cluster if each.startswith("INSERT"))
    whole = [each for each in made if " AS " not in each]
    assert {each.split()[5] for each in whole} >= set(clickhouse_engine.NAMES)
    assert all("PARTITION BY day" in statement and "TTL day + INTERVAL 14 DAY" in statement for statement in whole)
    assert not any(word in " ".join(old) for word in ("CODEC", "LowCardinality", "TTL"))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[server]\nport = 0", 2, "server.port is not a port"),
        ('[retention]\nmax_age = "1h"', 2, "retention.max_age is not in whole days, such as 14d"),
        ('[retention]\nhours_after = "1.5d"', 2, "retention.hours_after is not in whole days, such as 14d"),
        ("\n[limits]\nbodies = 1", 3, "limits.bodies is not known"),
        ('[server]\nhost = "0.0.0.0"', 2, "an address for other machines"),
        ('[[tenant]]\nname = "a"\nwrite_token_file = "/absent"', 1, "/absent cannot be read"),
        ('[[tenant]]\nnames = "a"', 1, "its settings are name"),
        ('[server]\nstore = "clickhouses://h/a"', 2, "clickhouses://... is not a store"),
        ('[server]\nstore = "clickhouse://h:99999/a"', 2, "not a complete clickhouse:// address"),
        ('[server]\nstore = "clickhouse://h/a?secure=1"', 2, "?secure=, which is not supported"),
        ('[server]\nstore = "clickhouse://u:secret@h/a"', 2, "server.store_password_file"),
        ('[server]\nstore_password_file = "/absent"', 2, "/absent cannot be read"),
        ("x = [", 1, ""),
    ],
)
def test_each_error_of_the_configuration_has_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(BadConfig) as caught:
        config.parse(text, "x")
    assert [(error.line, said in error.text) for error in caught.value.errors] == [(line, True)]


def test_password_of_the_store_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("from-a-file\n")
    file.chmod(0o600)
    text = '[server]\nstore = "clickhouse://user@h/a"\n'
    monkeypatch.setenv(PASSWORD_VARIABLE, "from-the-environment")
    assert config.parse(text, "x").store_address().password == "from-the-environment"
    found = config.parse(f'{text}store_password_file = "{file}"', "x").store_address()
    assert (found.user, found.password) == ("user", "from-a-file")


def test_error_of_the_store_never_has_its_password() -> None:
    with pytest.raises(BadConfig) as caught:
        config.parse('[server]\nstore = "clickhouse://u:hunter2hunter2@h/a"', "x")
    assert "hunter2" not in "".join(map(str, caught.value.errors)) + str(caught.value)


def test_printed_configuration_is_the_default_one() -> None:
    text = "\n".join(line.removeprefix("#") if " = " in line and '"/etc' not in line and "staging" not in line else line
                     for line in config.printed().split("\n"))  # fmt: skip
    text = "\n".join(line for line in text.split("\n") if "= ..." not in line)
    assert config.parse(text, "x") == config.ServerConfig()


def test_token_that_others_may_read_or_that_is_short_is_refused_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for token, mode in (("secret-0123456789abc", 0o644), ("secret-0", 0o600)):
        path.write_text(token)
        path.chmod(mode)
        with pytest.raises(BadConfig) as caught:
            config.parse(f'[[tenant]]\nname = "a"\nread_token_file = "{path}"', "x")
        assert "secret" not in str(caught.value).replace(str(path), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is wanted")
def test_token_in_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret-0123456789abc")
    path.chmod(0o600)
    text = f'[[tenant]]\nname = "a"\nread_token_file = "{path}"'
    assert config.parse(text, "x").tenants[0].tokens == {"read": "secret-0123456789abc"}
    os.chown(path, 65534, -1)
    with pytest.raises(BadConfig, match="another user's file"):
        config.parse(text, "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="it is root's server that is asked about")
def test_configuration_that_others_may_write_is_refused_to_root(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[server]\nport = 4242\n")
    path.chmod(0o644)
    assert config.load(str(path)).port == 4242
    path.chmod(0o666)
    with pytest.raises(UsageError, match="users other than root may write"):
        config.load(str(path))


def test_configuration_with_a_number_of_thousands_of_digits_is_refused_with_its_line() -> None:
    with pytest.raises(BadConfig, match="line 2"):
        config.parse(f"[server]\nport = {'9' * 5000}", "x")


@pytest.mark.parametrize(
    "url", ["chdb://x", "chdb:///", "http://x/y", "clickhouse:///x", "clickhouse://h:99999/x", "clickhouse://h/a;b"]
)
def test_other_addresses_are_no_store(url: str) -> None:
    with pytest.raises(UsageError):
        address(url)


class FullDisk(Disk):
    """A disk that is full after this many bytes."""

    room = 0

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data[: self.room])
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, "full")


def test_full_disk_keeps_what_it_has_and_nothing_of_what_it_refuses(tmp_path: Path) -> None:
    disk = FullDisk()
    files = SegmentFiles(str(tmp_path / "data"), disk)
    first, second = name_of("x", 60), name_of("x")
    disk.room = 100
    assert files.store_segment("default", first, b"a" * 100)
    disk.room = 10
    with pytest.raises(DiskFull):
        files.store_segment("default", second, b"b" * 100)
    assert [(tenant, name, size) for tenant, name, size in files.all()] == [("default", first, 100)]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [first.name]
    disk.room = 1000
    assert files.store_segment("default", second, b"b" * 100)
    files.close()


class WritingDown(Disk):
    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def create(self, path: str) -> int:
        fd = super().create(path)
        self.done.append(("create", os.path.dirname(path)))
        return fd

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.done.append(("sync", path))

    def make_folder(self, path: str) -> bool:
        self.done.append(("make", path))
        return super().make_folder(path)


def test_new_folders_are_synced_before_a_file_is_created_in_them(tmp_path: Path) -> None:
    """Sync also existing folders once: their creator may have been killed before the sync."""
    root, name = str(tmp_path / "data"), name_of("x", 60)
    whole = [root, f"{root}/default", f"{root}/default/{name.day}", f"{root}/default/{name.day}/{name.folder}"]
    made = [step for outer, inner in pairwise(whole) for step in (("make", inner), ("sync", outer))]
    kept = [("create", whole[-1]), ("sync", whole[-1])]
    for _ in range(2):
        disk = WritingDown()
        files = SegmentFiles(root, disk)
        assert files.store_segment("default", name, b"a")
        assert disk.done == [*made, *kept]
        disk.done.clear()
        assert files.store_segment("default", name_of("x", 30), b"b")
        assert disk.done == kept
        files.close()
        for path in Path(whole[-1]).iterdir():
            path.unlink()


@pytest.mark.parametrize("service", ["x", "another"])
@pytest.mark.parametrize("by_whom", ["by the server", "by somebody else"])
def test_folders_that_were_dropped_are_made_again(tmp_path: Path, by_whom: str, service: str) -> None:
    files, name = SegmentFiles(str(tmp_path / "data")), name_of("x", 60)
    assert files.store_segment("default", name, b"a")
    if by_whom == "by the server":
        assert files.drop_day(name.day) == 1
    else:
        shutil.rmtree(tmp_path / "data" / "default")
    again = name_of(service, 60)
    assert files.store_segment("default", again, b"a")
    assert files.read("default", again) == b"a"
    files.close()


def test_what_a_killed_server_was_writing_is_written_over(tmp_path: Path) -> None:
    files, name = SegmentFiles(str(tmp_path / "data")), name_of("x", 60)
    folder = tmp_path / "data" / "default" / name.day / name.folder
    folder.mkdir(parents=True)
    (folder / f".{name.name}.{threading.get_ident():x}{PART}").write_bytes(b"half")
    for _ in range(2):  # first a new folder, then a known one
        assert files.store_segment("default", name, b"a")
        assert [path.read_bytes() for path in folder.iterdir()] == [b"a"]
        (folder / name.name).rename(folder / f".{name.name}.{threading.get_ident():x}{PART}")
    files.close()


def test_segment_that_is_there_is_known_when_the_disk_is_full(tmp_path: Path) -> None:
    disk = FullDisk()
    files, name = SegmentFiles(str(tmp_path / "data"), disk), name_of("x", 60)
    disk.room = 100
    assert files.store_segment("default", name, b"a")
    disk.room = 0
    assert not files.store_segment("default", name, b"a")
    files.close()


def test_segment_that_is_there_is_known_when_its_name_is_durable(tmp_path: Path) -> None:
    """Sync also an existing segment: its writer may have been killed before the sync."""
    disk = WritingDown()
    files, name = SegmentFiles(str(tmp_path / "data"), disk), name_of("x", 60)
    assert files.store_segment("default", name, b"a")
    disk.done.clear()
    assert not files.store_segment("default", name, b"a")
    folder = f"{files.root}/default/{name.day}/{name.folder}"
    assert disk.done == [("create", folder), ("sync", folder)]
    files.close()


def test_second_segment_of_a_name_is_not_kept_and_changes_nothing(tmp_path: Path) -> None:
    files = SegmentFiles(str(tmp_path / "data"))
    name = name_of(marked().title)
    assert files.store_segment("default", name, b"one")
    assert not files.store_segment("default", name, b"two")
    assert files.read("default", name) == b"one"
    assert files.drop_day(name.day) == 1
    assert list(files.all()) == []
    files.close()
