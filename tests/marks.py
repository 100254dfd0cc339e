"""Which kinds of tests a file holds: the one table behind `pytest -m`.

A file has the marks of the first pattern that fits it; a test file that none fits holds unit tests. A test that differs
from its file has marks of its own.
"""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache

KINDS = {
    "unit": "needs nothing but Python: no compiler, no other tool, no rights, no program to look at",
    "live": "looks at running programs, whose threads run when the machine lets them: run again, twice, if it fails",
    "matrix": "the same for each interpreter, toolchain or architecture that can be had",
    "fuzz": "random, mutated or hostile input",
    "system": "needs tools of the system: compilers, debuggers, emulators, a browser, pip",
}

TABLE = {
    "*/test_fuzz*.py": "fuzz system",
    # by folder, what differs first
    "agent/test_agent_live.py": "live",
    "agent/*": "unit",
    "api/*": "live system",
    "bpf/test_samples.py": "live matrix system",
    "bpf/test_locks.py": "live matrix system",
    "bpf/test_wait_sums.py": "unit",
    "bpf/test_waits.py": "live matrix system",
    "bpf/*": "system",
    "breakpad/test_*live.py": "live system",
    "breakpad/test_p*.py": "unit",
    "breakpad/test_names.py": "unit",
    "breakpad/test_reader.py": "unit",
    "breakpad/*": "system",
    "cli/live/test_on_a_terminal.py": "live system",
    "cli/live/*": "unit",
    "cli/test_report.py": "unit",
    "cli/test_diff.py": "unit",
    "cli/test_output.py": "system",
    "cli/test_examined.py": "system",
    "cli/test_inspect.py": "system",
    "cli/*": "live system",
    "collectors/test_sampling_clock.py": "unit",
    "collectors/test_batch_builder.py": "unit",
    "collectors/test_feedback.py": "unit",
    "collectors/test_registry.py": "unit",
    "collectors/test_scheduler.py": "unit",
    "collectors/test_stopped_processes.py": "unit",
    "collectors/test_thread_lives.py": "unit",
    "collectors/test_syscall_numbers.py": "matrix system",
    "collectors/*": "live system",
    "core/*": "matrix system",
    "exporters/test_flamegraph_names.py": "system",
    "exporters/test_page_*.py": "system",
    "exporters/test_changes_page.py": "system",
    "exporters/test_start_up_live.py": "live system",
    "hostile/test_openers.py": "unit",
    "hostile/test_patterns.py": "unit",
    "hostile/test_security_page.py": "unit",
    "hostile/*": "live fuzz system",
    "interpreters/test_merge.py": "unit",
    "interpreters/test_codes.py": "unit",
    "interpreters/test_cframes_alike.py": "unit",
    "interpreters/test_hostile.py": "fuzz",
    "interpreters/test_lines.py": "matrix system",
    "interpreters/*": "live matrix system",
    "jit/test_code_[mt]a*.py": "unit",
    "jit/test_gdb_list.py": "system",
    "jit/test_libunwind_[clrt][!i]*.py": "unit",
    "jit/test_libunwind_list.py": "unit",
    "jit/test_perf_map.py": "unit",
    "jit/*": "live system",
    "live/*": "live matrix system",
    "minidump/test_crashpad.py": "live system",
    "minidump/test_against_cores.py": "matrix system",
    "minidump/*": "unit",
    "model/test_x86_length.py": "system",
    "model/*": "unit",
    "objfile/test_images_live.py": "live system",
    "objfile/test_elf.py": "system",
    "objfile/test_debug_files.py": "system",
    "objfile/*": "unit",
    "oracle/*": "live system",
    "perf/test_records.py": "unit",
    "perf/test_switch_*.py": "unit",
    "perf/test_wall_clock.py": "unit",
    "perf/test_spaces.py": "unit",
    "perf/*": "live system",
    "importers/test_hostile.py": "fuzz",
    "importers/*": "unit",
    "recording/test_hostile.py": "fuzz",
    "recording/test_journal.py": "live",
    "recording/*": "unit",
    "remote/test_packets.py": "fuzz",
    "remote/test_descriptions.py": "fuzz",
    "remote/test_lies.py": "fuzz system",
    "remote/test_usage.py": "unit",
    "remote/*": "live matrix system",
    "session/test_session.py": "live system",
    "session/test_recording.py": "live",
    "session/test_rehearsal.py": "live",
    "session/test_reused_ids.py": "live system",
    "session/test_flat_memory.py": "system",
    "session/test_unfollowed.py": "live",
    "session/test_one_function.py": "live system",
    "session/test_keeping.py": "live system",
    "session/test_names_ahead.py": "live system",
    "session/*": "unit",
    "survival/*": "live system",
    "symbolize/test_symbolizer.py": "live system",
    "symbolize/*": "system",
    "unwind/exidx/test_hostile.py": "fuzz system",
    "unwind/exidx/*": "matrix system",
    "unwind/sframe/test_frame_pointer_promise.py": "system",
    "unwind/test_function_starts.py": "system",
    "unwind/test_cfi_against_tools.py": "matrix system",
    "unwind/test_unwinder.py": "live system",
    "unwind/sframe/test_live.py": "live matrix system",
    "unwind/sframe/test_fresh.py": "matrix system",
    "unwind/*/test_hostile.py": "fuzz",
    "unwind/test_cfi_hostile.py": "fuzz",
    "test_install.py": "system",
    "test_roots.py": "system",
}
"""Pattern of a path below tests/ -> its marks."""


@cache
def of(path: str) -> frozenset[str]:
    """path: of a test file, below tests/."""
    return next(
        (frozenset(kinds.split()) for pattern, kinds in TABLE.items() if fnmatch(path, pattern)), frozenset({"unit"})
    )
