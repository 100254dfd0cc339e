"""Tests of labels: valid names, selection by label, and labels in every file format."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pyprof import load
from pyprof.errors import UsageError
from pyprof.importers.pprof import MAX_LABELLED, read_pprof
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.merge import merge
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.profile import Profile
from pyprof.model.thread_identity import MOST, labels_of
from tests.exporters.firefox_profile import read as read_firefox
from tests.exporters.pprof_reader import read as load_pprof
from tests.exporters.profiles import Builder, code, golden
from tests.exporters.support import export
from tests.recording.support import stored


def labelled(**labels: str) -> Profile:
    profile = golden()
    return replace(profile, threads=tuple(replace(each, labels=labels_of(labels)) for each in profile.threads))


def of_two_hosts() -> Profile:
    return merge([labelled(env="prod", host="a"), labelled(env="prod", host="b")])


def test_labels_of_a_profile_are_those_that_all_threads_have() -> None:
    assert labelled(env="prod", host="a").labels == {"env": "prod", "host": "a"}
    assert of_two_hosts().labels == {"env": "prod"}


def test_same_thread_with_other_labels_is_another_one_in_a_merge() -> None:
    found = of_two_hosts()
    assert len(found.threads) == 2 * len(golden().threads)
    assert found.total == 2 * golden().total
    assert found.filter(label={"host": "a"}).total == golden().total
    assert found.filter(label={"host": {"a", "b"}, "env": "prod"}).total == found.total
    assert not found.filter(label={"host": "c"}).total
    assert not found.filter(label={"rack": "1"}).total


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"x": ""},
        {"a=b": "x"},
        {"tid": "x"},
        {"pprof::base": "x"},
        {"x": "a\nb"},
        {"x": "y" * 1001},
        {"x": 1},
    ],
    ids=repr,
)
def test_invalid_label_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="label"):
        labels_of(labels)


def test_too_many_labels_are_refused() -> None:
    with pytest.raises(UsageError, match=f"{MOST} at most"):
        labels_of({f"name{at}": "x" for at in range(MOST + 1)})


def test_recording_and_pprof_keep_them(tmp_path: Path) -> None:
    profile = of_two_hosts()
    assert load(stored(profile, tmp_path)).threads == profile.threads
    path = tmp_path / "a.pb.gz"
    path.write_bytes(export("pprof", profile))
    found = load(path)
    assert {thread.labels for thread in found.threads} == {thread.labels for thread in profile.threads}
    assert found.filter(label={"host": "b"}).total == golden().total


def test_pprof_has_them_beside_those_of_the_thread() -> None:
    samples = load_pprof(export("pprof", labelled(env="prod"))).samples
    assert samples
    assert all(labels["env"] == "prod" and labels["pid"] for _, _, labels in samples)


def test_firefox_shows_common_labels_once_and_others_beside_the_thread() -> None:
    found = read_firefox(export("firefox", of_two_hosts()))
    entries = found.document["meta"]["extra"][0]["entries"]
    assert {"label": "env", "format": "string", "value": "prod"} in entries
    names = [thread["name"] for thread in found.document["threads"]]
    assert "main [host=a]" in names
    assert "main [host=b]" in names


def test_more_different_labels_than_are_kept_are_left_out_and_said() -> None:
    thread = golden().threads[0]
    builder = Builder(threads=[replace(thread, labels=(("n", str(at)),)) for at in range(MAX_LABELLED + 2)])
    node = builder.node([code("f")])
    for at in range(MAX_LABELLED + 2):
        builder.sample(node, at)
    profile = builder.build()
    found = read_pprof(gzip.decompress(export("pprof", profile)), "many")
    assert len({thread.labels for thread in found.threads}) == MAX_LABELLED + 1
    assert found.total == profile.total
    assert found.summary.notes[-1] == make_note("labels_left_out", labels="n")
