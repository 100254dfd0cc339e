"""Tests of broken and malicious files of other profilers: a profile or one error message, in bounded memory."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError, PyprofError, RecordingError
from pyprof.importers import collapsed, perf, pprof, pprof_tables, profile_builder, protobuf, speedscope
from pyprof.importers.registry import load
from pyprof.model.profile import Frame, Profile
from tests.agent.filled import segment
from tests.exporters.profiles import golden
from tests.exporters.support import export
from tests.importers.test_perf_script import USUAL

pytestmark = pytest.mark.fuzz

FRAMES = {"shared": {"frames": [{"name": "f"}]}}
SAMPLED = {"type": "sampled", "name": "t", "unit": "seconds", "samples": [[0]], "weights": [1]}
EVENTED = {"type": "evented", "name": "t", "unit": "seconds", "startValue": 0}

LIES = {
    "no json": b"{",
    "no frames": orjson.dumps({"profiles": []}),
    "no profiles": orjson.dumps(FRAMES | {"profiles": []}),
    "a list of nothing": b'{"shared": [], "profiles": 7}',
    "several units": orjson.dumps(FRAMES | {"profiles": [SAMPLED, SAMPLED | {"unit": "none"}]}),
    "a frame that is not there": orjson.dumps(FRAMES | {"profiles": [SAMPLED | {"samples": [[1]]}]}),
    "a frame below 0": orjson.dumps(FRAMES | {"profiles": [SAMPLED | {"samples": [[-1]]}]}),
    "more weights": orjson.dumps(FRAMES | {"profiles": [SAMPLED | {"weights": [1, 2]}]}),
    "a weight below 0": orjson.dumps(FRAMES | {"profiles": [SAMPLED | {"weights": [-1]}]}),
    "a weight that is huge": orjson.dumps(FRAMES | {"profiles": [SAMPLED | {"weights": [1e300]}]}),
    "a text as weight": orjson.dumps(FRAMES | {"profiles": [SAMPLED | {"weights": ["x"]}]}),
    "a function that does not end": orjson.dumps(
        FRAMES | {"profiles": [EVENTED | {"events": [{"type": "O", "frame": 0, "at": 0}]}]}
    ),
    "an end without a begin": orjson.dumps(
        FRAMES | {"profiles": [EVENTED | {"events": [{"type": "C", "frame": 0, "at": 0}]}]}
    ),
    "events out of order": orjson.dumps(
        FRAMES | {"profiles": [EVENTED | {"startValue": 9, "events": [{"type": "O", "frame": 0, "at": 0}]}]}
    ),
    "a short gzip": gzip.compress(b"x" * 100)[:20],
    "a gzip of rubbish": gzip.compress(b"\xff" * 100),
    "an empty pprof": gzip.compress(b""),
    "a number without end": gzip.compress(b"\x32\x00" + b"\x80" * 20),
    "a field beyond the end": gzip.compress(b"\x32\x7f"),
    "a second field beyond the end": gzip.compress(b"\x32\x00\x0a\x00\x32\x01a\x32\x7fb"),
    "no types": gzip.compress(b"\x32\x00"),
    "a sample without values": gzip.compress(b"\x32\x00\x0a\x00\x12\x00"),
    "a location that is not there": gzip.compress(b"\x32\x00\x0a\x00\x12\x04\x08\x05\x10\x01"),
    "a beginning after the end of time": gzip.compress(b"\x32\x00\x0a\x00\x48" + b"\xff" * 8 + b"\x7f"),
    "a text that is not there": gzip.compress(b"\x32\x00\x0a\x02\x08\x09"),
    "a function that is not there": gzip.compress(b"\x32\x00\x0a\x00\x22\x06\x08\x01\x22\x02\x08\x05"),
}


@pytest.mark.parametrize("lie", LIES)
def test_file_that_lies_is_refused(lie: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LIES[lie])
    with pytest.raises(RecordingError, match="is broken"):
        load(path)


def test_gzip_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pprof, "_MAX_BYTES", 1 << 20)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(bytes(1 << 22)))
    with pytest.raises(RecordingError, match="inflates to more than"):
        load(path)


ZEROS = gzip.compress(bytes(40 << 20))


class Counting:
    """A replacement of zlib that counts the inflated bytes."""

    error = zlib.error
    made = 0

    def decompressobj(self, wbits: int) -> Counting:
        self._inflate = zlib.decompressobj(wbits=wbits)
        return self

    def decompress(self, data: bytes, most: int) -> bytes:
        found = self._inflate.decompress(data, most)
        self.made += len(found)
        return found

    @property
    def eof(self) -> bool:
        return self._inflate.eof


def _stating(data: bytes, size: int) -> bytes:
    return data[:-4] + size.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("data", "made"),
    [
        (ZEROS, 0),
        (_stating(ZEROS, 1 << 31), 0),
        (_stating(ZEROS, 5), 6),
        (_stating(gzip.compress(b"short"), 1 << 10), 5),
        (gzip.compress(b"two") + gzip.compress(b"parts"), 3),
    ],
)
def test_bomb_is_refused_before_inflation_even_with_a_false_size(
    data: bytes, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting()
    monkeypatch.setattr(pprof, "zlib", counting)
    if made != 3:
        with pytest.raises(FormatError, match=r"inflates to more|incorrect length|breaks off"):
            pprof.inflate(data, 1 << 27)
    else:
        assert pprof.inflate(data, 1 << 27) == b"two"
    assert counting.made in (made, 0), "of a length that is wrong zlib gives nothing"


@pytest.mark.parametrize("plain", [b"", bytes(1 << 20), random.Random(1).randbytes(1 << 22) * 8])
def test_compressed_file_within_the_limit_is_inflated(plain: bytes) -> None:
    assert pprof.inflate(gzip.compress(plain), 1 << 27) == plain
    assert pprof.inflate(plain, 1) == plain


def _field(number: int, content: bytes) -> bytes:
    return protobuf.pack_number(number << 3 | 2) + protobuf.pack_number(len(content)) + content


HEAD = _field(1, b"\x08\0") + _field(6, b"")
FILLED = {
    "numbers in a location": (_field(4, b"\x20\1" * 200), "more than 100 fields"),
    "numbers in a sample": (_field(2, b"\x08\1" * 200), "more than 100 fields"),
    "labels of a sample": (_field(4, b"\x08\1") + _field(2, b"\x1a\0" * 200), "more than 100 fields"),
    "texts": (_field(6, b"") * 200 + _field(5, b""), "more than 150 fields of one kind"),
    "lines in locations": (_field(5, b"") + _field(4, b"\x22\0" * 80) * 2, "more than 150 lines"),
    "calls of a stack": (_field(4, b"\x08\1") + _field(2, _field(1, b"\1" * 300) + _field(2, b"\1")), "250 bytes"),
    "types of values": (_field(1, b"\x08\0") * 100, "one to 100"),
    "names of locations": (
        _field(6, b"x" * 40)
        + _field(5, b"\x08\1\x10\1")
        + b"".join(_field(4, b"\x22\2\x08\1" + b"\x18" + bytes([at])) for at in range(5)),
        "names of more than 350 letters",
    ),
    "names of files": (
        _field(6, b"x" * 40)
        + _field(3, b"\x08\1\x28\1\x30\1")
        + b"".join(_field(4, b"\x10\1\x18" + bytes([at])) for at in range(5)),
        "names of more than 350 letters",
    ),
    "different calls": (_field(4, b"\x08\1") + _field(2, _field(1, b"\1" * 200) + _field(2, b"\1")), "180 different"),
}


@pytest.mark.parametrize("what", FILLED)
def test_file_that_is_filled_with_one_thing_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse files of 250 KB that inflate to 250 MB and would need up to 10 GB of memory."""
    for module, name, most in (
        (protobuf, "MAX_FIELDS", 100),
        (protobuf, "MAX_ROWS", 150),
        (pprof, "MAX_ROWS", 150),
        (pprof_tables, "MAX_ROWS", 150),
        (pprof_tables, "MAX_LETTERS", 350),
        (pprof_tables, "_MAX_ROW", 250),
        (profile_builder, "MAX_NODES", 180),
    ):
        monkeypatch.setattr(module, name, most)
    content, said = FILLED[what]
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(HEAD + content))
    with pytest.raises(RecordingError, match=said):
        load(path)


def test_labels_of_a_sample_that_are_too_many_are_left_out() -> None:
    words = b"".join(_field(6, f"l{number}".encode()) for number in range(65))
    labels = b"".join(_field(3, b"\x08" + bytes([number]) + b"\x10\1") for number in range(1, 66))
    data = HEAD + words + _field(4, b"\x08\1") + _field(2, _field(1, b"\1") + _field(2, b"\1") + labels)
    found = pprof.read_pprof(data, "x")
    assert found.threads[0].labels == ()
    assert found.summary.notes[-1].reason == "labels_left_out"


def test_samples_that_are_read_a_few_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.decompress(export("pprof", golden()))
    whole = pprof.read_pprof(data, "x")
    assert len(whole.stack) > 3
    monkeypatch.setattr(pprof_tables, "AT_ONCE", 1)
    parts = pprof.read_pprof(data, "x")
    assert (parts.stack.tolist(), parts.values.tolist()) == (whole.stack.tolist(), whole.values.tolist())
    assert parts.threads == whole.threads


Read = Callable[[bytes, str], Profile]


def whole_files() -> Iterator[tuple[str, Read, bytes]]:
    """Yield (kind, its reader, uncompressed contents). A segment of the agent is a pprof file with extensions."""
    yield "speedscope", speedscope.read_speedscope, export("speedscope", golden())
    yield "pprof", pprof.read_pprof, gzip.decompress(export("pprof", golden()))
    yield "collapsed", collapsed.read_collapsed, export("collapsed", golden())
    yield "perf script", perf.read_perf_script, 9 * USUAL
    yield "segment", pprof.read_pprof, gzip.decompress(segment(golden(), "web", 1_700_000_060_000_000_000).data)


@pytest.mark.parametrize("name", ["speedscope", "pprof", "collapsed", "perf script", "segment"])
def test_mutated_files_give_a_profile_or_one_sentence(name: str) -> None:
    ((read, whole),) = [(reader, whole) for kind, reader, whole in whole_files() if kind == name]
    rng = random.Random(7)
    refused = 0
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read(bytes(data), "x")
        except (FormatError, OverflowError):
            refused += 1
    assert refused < 200
    assert refused > 20 or name in ("collapsed", "perf script")  # their readers skip invalid lines


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**63) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["shared", "frames", "profiles", "name", "type", "unit", "samples", "weights", "events", "at"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(_json | st.binary(max_size=60))
def test_any_json_or_bytes_give_a_profile_or_one_sentence(document: object) -> None:
    data = document if isinstance(document, bytes) else orjson.dumps(document)
    for _, read, _ in whole_files():
        try:
            read(data, "x")
        except (PyprofError, OverflowError):
            continue


def test_collapsed_stack_deeper_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"f 1\n" + b";".join([b"f"] * (collapsed.MAX_DEPTH + 1)) + b" 1\n")
    with pytest.raises(RecordingError, match="a stack of more than 1,048,576 frames"):
        load(path)


def test_collapsed_stacks_with_too_many_calls_are_refused_before_their_tree_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lines(count: int) -> bytes:
        return b"".join(b"main;operator new;a name with %d spaces;f(int, char) 1\n" % n for n in range(count))

    for module in (collapsed, profile_builder):
        monkeypatch.setattr(module, "MAX_NODES", 1 << 16)
    assert collapsed.read_collapsed(lines(30_000), "title").values.sum() == 30_000
    monkeypatch.setattr(collapsed, "_Stacks", None)
    with pytest.raises(OverflowError, match="more than 65,536 different calls"):
        collapsed.read_collapsed(lines(40_000), "title")


def test_collapsed_stack_and_name_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    stacked: list[list[int]] = []
    make_frame, add_path = collapsed._frame, profile_builder.Builder.add_path

    def frame(name: str) -> Frame:
        made.append(name)
        return make_frame(name)

    def path(self: profile_builder.Builder, frames: Iterable[int], below: int = 0) -> list[int]:
        stacked.append(list(frames))
        return add_path(self, stacked[-1], below)

    monkeypatch.setattr(collapsed, "_frame", frame)
    monkeypatch.setattr(profile_builder.Builder, "add_path", path)
    found = collapsed.read_collapsed(b"main;parse;read 2\nmain;parse;wait 1\n" * 100, "title")
    assert sorted(made) == ["main", "parse", "read", "wait"]
    assert [len(frames) for frames in stacked] == [3, 1]  # the second stack shares two frames with the first
    assert found.values.sum() == 300
