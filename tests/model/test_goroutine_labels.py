"""Tests of the labels of goroutines as a stopped program has them in memory, and of labels that programs give."""

from __future__ import annotations

import pytest

from pyprof.model.sample_batch import read_goroutine_labels
from pyprof.model.thread_identity import Labels, join_labels, read_program_labels
from tests.bpf.made_memory import HEAP, HEAP_BYTES
from tests.bpf.test_goroutines import LABELS_AT, TABLE, with_labels


def read(labels: dict[str, str], form: str, change: tuple[int, int] | None = None) -> Labels | None:
    process = with_labels(labels, form)
    if change is not None:
        process.put(*change)
    memory = bytes(process.heap)

    def read_memory(avma: int, size: int) -> bytes:
        return memory[avma - HEAP : avma - HEAP + size] if HEAP <= avma < HEAP + HEAP_BYTES else b""

    return read_goroutine_labels(read_memory, LABELS_AT)


@pytest.mark.parametrize("form", ["map", "slice"])
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_labels_of_both_forms_are_read(form: str, count: int) -> None:
    labels = {f"name{n}": f"value {n}" for n in range(count)}
    assert read(labels, form) == tuple(labels.items())


def test_goroutine_without_labels_has_none() -> None:
    assert read_goroutine_labels(lambda avma, size: b"", 0) == ()


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("map", (TABLE + 16, 1 << 63)),
        ("map", (TABLE + 0x108, 8)),
        ("map", (TABLE + 8, 5 << 8)),
        ("slice", (LABELS_AT + 8, 1 << 40)),
        ("slice", (TABLE + 16, (1 << 64) - 8)),
    ],
    ids=["bucket nowhere", "name nowhere", "many buckets", "more than its room", "value nowhere"],
)
def test_labels_that_cannot_all_be_read_are_unknown(form: str, change: tuple[int, int]) -> None:
    assert read({"a": "b", "c": "d"}, form, change) is None


def test_more_than_eight_labels_are_unknown() -> None:
    assert read({f"n{n}": "v" for n in range(9)}, "map") is None
    assert read({f"n{n}": "v" for n in range(9)}, "slice") is None


def test_labels_of_a_program_are_valid_in_all_outputs() -> None:
    given = [(b"tid", b"7"), (b"a=b", b"c\nd"), (b"", b"x"), (b"empty", b""), (b"pprof::base", b"1"), (b"\xff", b"y")]
    assert dict(read_program_labels(given)) == {
        "label_tid": "7",
        "a_b": "c_d",
        "label_pprof::base": "1",
        "\N{REPLACEMENT CHARACTER}": "y",
    }


def test_labels_of_the_recording_hold_before_those_of_the_program() -> None:
    assert join_labels((("env", "prod"),), (("env", "x"), ("path", "/"))) == (("env", "prod"), ("path", "/"))
    assert join_labels((("env", "prod"),), ()) == (("env", "prod"),)
