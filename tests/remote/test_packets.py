"""Tests of packet framing: examples of the GDB manual, round trips and random bytes."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.gdb_stub.remote_serial import (
    MAX_PAYLOAD,
    Incoming,
    PacketKind,
    PacketLink,
    PacketReader,
    build_packet,
    escape_payload,
    parse_address,
    unescape_payload,
)
from pyprof.errors import RemoteError, UsageError

pytestmark = pytest.mark.fuzz


def everything(data: bytes, step: int = 1 << 20) -> list[Incoming]:
    reader, found = PacketReader(), []
    for at in range(0, len(data), step):
        reader.feed_bytes(data[at : at + step])
        while (item := reader.next_item()) is not None:
            found.append(item)
    return found


def test_packet_is_framed_as_in_the_manual() -> None:
    assert build_packet(b"OK") == b"$OK#9a"
    assert build_packet(b"") == b"$#00"
    assert escape_payload(b"a}b#$*") == b"a}]b}\x03}\x04}\n"


def test_run_length_of_the_manual_is_expanded() -> None:
    assert unescape_payload(b"0* ") == b"0000"
    assert unescape_payload(b'0*"00') == b"00000000"


def test_escaped_byte_may_be_repeated() -> None:
    assert unescape_payload(b"}\x03* ") == b"####"


@pytest.mark.parametrize("body", [b"*!", b"a*", b"a*\x1f", b"}", b"ab}"])
def test_body_without_sense_is_an_error(body: bytes) -> None:
    with pytest.raises(RemoteError):
        unescape_payload(body)


def test_wrong_checksum_is_told_from_a_packet() -> None:
    assert everything(b"$OK#9b$OK#9A") == [Incoming(PacketKind.BROKEN), Incoming(PacketKind.PACKET, b"OK")]


def test_notification_and_acknowledgements_stand_between_packets() -> None:
    found = everything(b"+%Stop:T05#" + b"%02x" % (sum(b"Stop:T05") & 255) + b"-$OK#9a")
    assert [item.kind for item in found] == [PacketKind.ACK, PacketKind.NOTIFICATION, PacketKind.NAK, PacketKind.PACKET]
    assert found[1].payload == b"Stop:T05"


@given(st.lists(st.binary(max_size=200), max_size=6), st.integers(1, 30))
def test_payloads_come_back_however_the_bytes_are_cut(payloads: list[bytes], step: int) -> None:
    found = everything(b"".join(build_packet(payload) for payload in payloads), step)
    assert found == [Incoming(PacketKind.PACKET, payload) for payload in payloads]


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_any_bytes_give_packets_or_one_error(data: bytes) -> None:
    try:
        for item in everything(data, 7):
            assert len(item.payload) <= MAX_PAYLOAD
    except RemoteError:
        pass


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("board:2345", ("board", 2345)),
        (":7000", ("localhost", 7000)),
        ("[::1]:7000", ("::1", 7000)),
        ("tcp:board:1", ("board", 1)),
        ("unix:/run/stub", "/run/stub"),
    ],
)
def test_address_is_understood(text: str, place: object) -> None:
    assert parse_address(text) == place


@pytest.mark.parametrize("text", ["board", "board:", "board:0", "board:70000", "board:x", ""])
def test_address_without_sense_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize("flood", [b"+", b"$x#78", b"%Stop:x#"], ids=["acknowledgements", "packets", "notifications"])
def test_stub_that_never_stops_talking_is_left(flood: bytes) -> None:
    """Send data all the time that is never a reply."""
    ours, theirs = socket.socketpair()

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs.sendall(flood * 100)

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    link = PacketLink(ours, "stub", answer_s=0.2)
    with pytest.raises(RemoteError):
        link.request(b"g")
    link.close()
    thread.join()
    theirs.close()
