"""Tests of the terminal: names of keys that it sends, and control sequences that it receives."""

from __future__ import annotations

import contextlib
import os
import pty
import termios
from collections.abc import Iterator

import pytest

from pyprof.cli.top_screen import StyledText, Terminal, decoded


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~", ["up", "down", "pgup", "pgdn"]),
        (b"\x1b[H\x1b[F\x1b[1~\x1bOF", ["home", "end", "home", "end"]),
        (b"\x1b", ["esc"]),
        (b"\x1b\x1b[A", ["esc", "up"]),
        (b"\x1b[1;5Aq", ["up", "q"]),
        (b"\x1b[200~x\x1b[<0;1;1M", ["x"]),
        (b"\t\r\n\x7f\x08", ["tab", "enter", "enter", "backspace", "backspace"]),
        (b"\x03\x1a\x0c", ["ctrl-c", "ctrl-z", "ctrl-l"]),
        ("ü表".encode(), ["ü", "表"]),
        (b"\xff\xfea", ["a"]),
    ],
)
def test_keys_are_named(data: bytes, names: list[str]) -> None:
    assert decoded(data) == names


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Terminal, int]]:
    """Yield a terminal and the file descriptor of its other end."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr("pyprof.cli.top_screen._keys_fd", lambda: os.dup(theirs))
    monkeypatch.setenv("NO_COLOR", "1")
    made = Terminal()
    os.dup2(theirs, made._out)
    os.close(theirs)
    yield made, ours
    os.close(ours)


def test_terminal_is_raw_within_and_as_before_after_an_error(terminal: tuple[Terminal, int]) -> None:
    screen, ours = terminal
    before = termios.tcgetattr(ours)
    with contextlib.suppress(ZeroDivisionError), screen:
        assert not termios.tcgetattr(ours)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
        raise ZeroDivisionError
    assert termios.tcgetattr(ours) == before


def test_only_lines_that_changed_are_written(terminal: tuple[Terminal, int], monkeypatch: pytest.MonkeyPatch) -> None:
    screen, _ = terminal
    said: list[str] = []
    monkeypatch.setattr(screen, "_write", said.append)
    with screen:
        screen.draw([(StyledText("one", "share"),), (StyledText("two"),)])
        screen.draw([(StyledText("one", "share"),), (StyledText("three", "title"),)])
        screen.draw([(StyledText("one"),)])
        screen.draw([(StyledText("one"),)])
        screen.redraw()
        screen.draw([(StyledText("one"),)])
    assert said == [
        "\x1b[?1049h\x1b[?25l\x1b[2J",
        "\x1b[2J\x1b[1;1Hone\x1b[K\x1b[2;1Htwo\x1b[K",  # NO_COLOR is set
        "\x1b[2;1H\x1b[1mthree\x1b[0m\x1b[K",
        "\x1b[2;1H\x1b[J",
        "\x1b[2J\x1b[1;1Hone\x1b[K",
        "\x1b[0m\x1b[?25h\x1b[?1049l",
    ]


def test_wait_for_a_key_ends_when_somebody_wakes(terminal: tuple[Terminal, int]) -> None:
    screen, ours = terminal
    with screen:
        screen.wake()
        assert screen.keys(60) == []
        os.write(ours, b"q\x1b[A")
        assert screen.keys(60) == ["q", "up"]


def test_terminal_that_is_gone_is_an_error(terminal: tuple[Terminal, int]) -> None:
    screen, ours = terminal
    with screen:
        spare = os.dup(ours)
        os.close(ours)
        os.close(spare)
        with pytest.raises(OSError, match=r"closed|error"):
            screen.keys(60)
        os.dup2(os.open(os.devnull, os.O_RDONLY), ours)
