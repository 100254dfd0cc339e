"""In which order files run: the long ones first, so that no worker begins a minute's file when the others have done.

Workers take whole files (--dist loadfile), in this order where pytest-xdist leaves it (--no-loadscope-reorder): its own
order begins with the files of many tests, which are not the long ones.
"""

from __future__ import annotations

LONG = (
    "live/test_ladders.py",
    "interpreters/test_record.py",
    "interpreters/test_peers_real.py",
    "interpreters/test_churn.py",
    "live/test_recursion.py",
    "interpreters/test_rungs.py",
    "bpf/test_samples.py",
    "live/test_i386.py",
    "oracle/test_oracle.py",
    "live/test_real_programs.py",
    "interpreters/test_rungs_recorded.py",
    "perf/test_hybrid.py",
    "interpreters/test_children.py",
    "cli/test_launched.py",
    "interpreters/test_gil.py",
    "remote/test_gdbserver.py",
    "interpreters/test_python_missing.py",
    "perf/test_recordings.py",
    "interpreters/test_dump.py",
    "perf/test_waits.py",
    "breakpad/test_live.py",
    "cli/test_inspect.py",
    "remote/test_every_instruction.py",
    "remote/test_bare_metal.py",
    "interpreters/test_greenlets.py",
    "jit/test_llvm.py",
    "minidump/test_fuzz.py",
    "survival/test_killed_profiler.py",
    "collectors/test_selection.py",
    "cli/test_record.py",
    "cli/test_bad_input.py",
    "remote/test_zoo.py",
    "perf/test_intervals.py",
    "interpreters/test_tasks.py",
    "remote/test_probes.py",
    "exporters/test_flamegraph_page.py",
    "jit/test_interpreters.py",
    "perf/test_ticks.py",
    "breakpad/test_windows_live.py",
    "model/test_reasons.py",
    "unwind/test_cached_frames.py",
    "core/test_against_judges.py",
    "breakpad/test_symbol_writer.py",
    "cli/test_odd_names.py",
    "unwind/exidx/test_running.py",
    "unwind/sframe/test_live.py",
    "unwind/exidx/test_hostile.py",
    "interpreters/test_lines.py",
    "test_install.py",
    "remote/test_qemu_user.py",
    "perf/test_modes.py",
    "perf/test_births.py",
    "cli/test_foreign_files.py",
    "core/test_missing.py",
    "unwind/exidx/test_rows.py",
    "test_marks.py",
    "exporters/test_start_up_live.py",
    "symbolize/test_fuzz_dwarf.py",
    "minidump/test_against_cores.py",
    "jit/test_libunwind_live.py",
    "symbolize/test_source_lines.py",
    "session/test_numbers.py",
    "interpreters/test_peers.py",
    "interpreters/test_trampolines.py",
    "collectors/test_stops.py",
)
"""Files below tests/ that take eight seconds or more with two workers on two processors, the longest first."""

_RANK = {path: rank for rank, path in enumerate(LONG)}


def rank(path: str) -> int:
    """path: of a test file, below tests/. Files of lower rank go first."""
    return _RANK.get(path, len(LONG))
