"""In which order files run: the long ones first, so that no worker begins a minute's file when the others have done.

Workers take whole files (--dist loadfile), in this order where pytest-xdist leaves it (--no-loadscope-reorder): its own
order begins with the files of many tests, which are not the long ones.
"""

from __future__ import annotations

LONG = (
    "interpreters/test_rungs_recorded.py",
    "live/test_ladders.py",
    "session/test_worker.py",
    "session/test_flat_memory.py",
    "perf/test_waits.py",
    "perf/test_hybrid.py",
    "interpreters/test_rungs.py",
    "oracle/test_oracle.py",
    "live/test_recursion.py",
    "cli/test_launched.py",
    "interpreters/test_record.py",
    "remote/test_zoo.py",
    "bpf/test_samples.py",
    "remote/test_gdbserver.py",
    "interpreters/test_churn.py",
    "perf/test_recordings.py",
    "interpreters/test_deep.py",
    "interpreters/test_greenlets.py",
    "live/test_real_programs.py",
    "remote/test_every_instruction.py",
    "interpreters/test_dump.py",
    "collectors/test_selection.py",
    "api/test_api.py",
    "cli/test_record.py",
    "exporters/test_page_views.py",
    "live/test_i386.py",
    "core/test_against_judges.py",
    "interpreters/test_gil.py",
    "interpreters/test_peers_real.py",
    "perf/test_ticks.py",
    "breakpad/test_live.py",
    "perf/test_modes.py",
    "session/test_recording.py",
    "interpreters/test_python_missing.py",
    "perf/test_births.py",
    "minidump/test_fuzz.py",
    "remote/test_probes.py",
    "breakpad/test_symbol_writer.py",
    "interpreters/test_children.py",
    "api/test_library_page.py",
    "collectors/test_stops.py",
    "cli/test_notebook.py",
    "bpf/test_locks.py",
    "cli/test_flight.py",
    "cli/live/test_on_a_terminal.py",
    "cli/test_odd_names.py",
    "cli/test_outcome.py",
    "cli/test_dump.py",
    "session/test_one_function.py",
    "cli/test_examined.py",
    "session/test_matched_stacks.py",
    "unwind/exidx/test_running.py",
    "jit/test_llvm.py",
    "minidump/test_against_cores.py",
    "symbolize/test_source_lines.py",
    "survival/test_killed_profiler.py",
    "interpreters/test_lines.py",
    "jit/test_interpreters.py",
    "remote/test_qemu_user.py",
    "remote/test_bare_metal.py",
    "collectors/test_life.py",
    "session/test_reused_ids.py",
    "test_mentions.py",
    "collectors/test_transfers.py",
)
"""Files below tests/ that take eight seconds or more with two workers on two processors, the longest first."""

_RANK = {path: rank for rank, path in enumerate(LONG)}


def rank(path: str) -> int:
    """path: of a test file, below tests/. Files of lower rank go first."""
    return _RANK.get(path, len(LONG))
