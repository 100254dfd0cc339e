"""Tests of the BPF object file: it matches its source, and a corrupt file is an error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pyprof.collectors.bpf import ring_buffer_records
from pyprof.collectors.bpf.bpf_object import BpfObject, ProgramRefused
from pyprof.collectors.bpf.kernel_program import read_program
from pyprof.collectors.linux import bpf_syscall
from pyprof.collectors.linux.sampled_arch import PERF_ARCHES
from pyprof.errors import FormatError
from pyprof.model.loss_reason_texts import counted
from tests.support import need

pytestmark = pytest.mark.system

FOLDER = Path(__file__).resolve().parent.parent.parent / "collectors" / "bpf"


def test_shipped_object_is_what_its_source_makes(tmp_path: Path) -> None:
    need("clang")
    need("llvm-strip")
    subprocess.run([str(FOLDER / "build"), str(tmp_path)], check=True, timeout=60)
    assert len(PERF_ARCHES) == 2
    for machine in PERF_ARCHES:
        assert (tmp_path / f"sampler.{machine}.o").read_bytes() == read_program(machine)
    assert (tmp_path / "process_ends.o").read_bytes() == (FOLDER / "process_ends.o").read_bytes()


def test_reasons_of_the_program_are_those_of_its_reader() -> None:
    assert (FOLDER / "losses.h").read_text() == ring_buffer_records.format_losses_header()


def test_each_reason_that_is_counted_has_a_sentence() -> None:
    listed = [reason.counted for reason in ring_buffer_records.LossReason if reason.counted]
    assert len(listed) == len(set(listed)) > 5
    assert [name for name in listed if counted(name) is None] == []


def test_program_that_the_verifier_refuses_is_one_error_with_its_reason() -> None:
    data = bytearray(read_program())
    loaded = BpfObject(bytes(data), "sampler.o")
    with pytest.raises(ProgramRefused) as refused:
        loaded.load({"perf_event/sample": bpf_syscall.RAW_TRACEPOINT})
    assert "sample" in refused.value.message
    assert refused.value.log


@pytest.mark.parametrize("size", [0, 63, 64, 1000, 20_000])
def test_object_that_is_cut_off_is_an_error(size: int) -> None:
    with pytest.raises(FormatError):
        BpfObject(read_program()[:size], "sampler.o")
