"""Segments go to sinks; the links in the spool are the only truth."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyprof.agent import config
from pyprof.agent.inventory import Caps
from pyprof.agent.pushing import Pusher, PushTarget
from pyprof.agent.segments import SegmentName
from pyprof.agent.spool import Spool, SpoolSegment
from pyprof.diagnostics import Diagnostics

RULE = '[[rule]]\nname = "x"\n'


def opened(folder: Path) -> Spool:
    found = Spool(str(folder), Caps(), Diagnostics(), sinks=("nas",), clock=lambda: 0)
    found.open()
    return found


def pusher(spool: Spool, to: Path) -> Pusher:
    return Pusher(PushTarget("nas", str(to)), spool, threading.Lock(), lambda *_, **__: None)


def links(folder: Path) -> list[Path]:
    return list(folder.glob("queue/nas/*/*/*"))


def test_folder_that_was_away_gets_all_once_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    spool, to = opened(tmp_path / "spool"), tmp_path / "nas"
    segments = [SpoolSegment(SegmentName.new("web", at), b"%d" % at) for at in range(1, 251)]
    assert spool.put(segments)
    with pytest.raises(FileNotFoundError):
        pusher(spool, to).push()
    assert len(links(tmp_path / "spool")) == 250
    to.mkdir()
    assert pusher(spool, to).push() == 250
    assert [(to / each.name.path).read_bytes() for each in segments] == [each.data for each in segments]
    assert not links(tmp_path / "spool")
    assert len(list((tmp_path / "spool").glob("19*/web/*"))) == 250


def test_killed_between_sending_and_unlinking_sends_again_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, to = opened(tmp_path), tmp_path / "nas"
    to.mkdir()
    assert spool.put([SpoolSegment(SegmentName.new("web", 1), b"one")])
    with monkeypatch.context() as patch:
        patch.setattr(spool, "sent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pusher(spool, to).push()
    assert len(list(to.glob("*/*/*"))) == 1
    assert pusher(opened(tmp_path), to).push() == 1
    assert len(list(to.glob("*/*/*"))) == 1
    assert not links(tmp_path)


@pytest.mark.parametrize(
    ("lines", "line", "text"),
    [
        ('name = "a"\ntype = "folder"\npath = "b"', 6, "absolute path"),
        ('name = "../a"\ntype = "folder"\npath = "/b"', 4, "is not a name"),
        ('name = "a"\ntype = "ftp"\npath = "/b"', 5, "is none of folder"),
        ('name = "a"\ntype = "folder"', 3, "path is missing"),
    ],
)
def test_wrong_push_is_said_with_its_line(lines: str, line: int, text: str) -> None:
    with pytest.raises(config.BadConfig, match=text) as caught:
        config.parse(f"{RULE}[[push]]\n{lines}\n", "x")
    assert caught.value.errors[0].line == line
