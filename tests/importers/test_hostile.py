"""Other profilers' files that are broken or made to harm: a profile, or one sentence; never much memory."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError, PyprofError, RecordingError
from pyprof.importers import collapsed, pprof, speedscope
from pyprof.importers.registry import load
from tests.agent.filled import segment
from tests.exporters.profiles import golden
from tests.exporters.support import export

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
    monkeypatch.setattr(pprof, "_MOST", 1 << 20)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(bytes(1 << 22)))
    with pytest.raises(RecordingError, match="inflates to more than"):
        load(path)


def whole_files() -> Iterator[tuple[str, ModuleType, bytes]]:
    """(kind, its reader, contents before compression); a segment of the agent's is a pprof file with more in it."""
    yield "speedscope", speedscope, export("speedscope", golden())
    yield "pprof", pprof, gzip.decompress(export("pprof", golden()))
    yield "collapsed", collapsed, export("collapsed", golden())
    yield "segment", pprof, gzip.decompress(segment(golden(), "web", 1_700_000_060_000_000_000).data)


@pytest.mark.parametrize("name", ["speedscope", "pprof", "collapsed", "segment"])
def test_mutated_files_give_a_profile_or_one_sentence(name: str) -> None:
    ((module, whole),) = [(reader, whole) for kind, reader, whole in whole_files() if kind == name]
    rng = random.Random(7)
    refused = 0
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            module.read(bytes(data), "x")
        except (FormatError, OverflowError):
            refused += 1
    assert refused < 200
    assert refused > 20 or name == "collapsed"


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
    for module in (speedscope, pprof, collapsed):
        try:
            module.read(data, "x")
        except (PyprofError, OverflowError):
            continue
