"""Converts files of older versions to the current schema, one version after the other, before anything else is read.

The input is an untrusted database in memory, which is known to have the tables of its version. The result is a database
of the next version. The contents of cells are checked afterwards, as in any file.

Recordings up to format version 4, and pprof files of the same time, have sentences in place of identifiers for
counters, problems and notes. Notes of version 5 have sentences, too. Tables that never change map these sentences to
identifiers.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.recording.checked_rows import TableRows, check_reference
from pyprof.recording.column_blocks import I64, BlockWriter, LineRow
from pyprof.recording.schema import SCHEMA, Table, insert_statement, parse_tables
from pyprof.recording.summary_rows import note_row

# fmt: off
_COUNTERS = {
    "sample lost: the ring was full": "samples_lost",
    "record of a switch lost: the ring was full": "switch_records_lost",
    "kernel throttled the sampling (kernel.perf_event_max_sample_rate)": "kernel_throttled",
    "sample without registers (a thread that ends)": "sample_without_registers",
    "sample of a kernel thread": "kernel_thread_sample",
    "sample of a process that is not known": "unknown_process_sample",
    "stack longer than a record of the kernel's program holds": "bpf_stack_too_long",
    "stack's end not known while mappings change": "stack_end_unknown",
    "kernel's program had no more time for a sample": "bpf_time_limit",
    "end of a wait found no room in the ring": "wait_end_lost",
    "arrival of a thread at a processor that the kernel did not report": "switch_in_missed",
    "thread of an interpreter's process without a state in it": "thread_without_interpreter_state",
    "the process that parses is not confined": "worker_not_confined",
    "search for an interpreter in files that took too long": "interpreter_search_timeout",
    "interpreter's frame that was not in memory": "interpreter_frame_not_in_memory",
    "more frames of an interpreter than a record of the kernel's program holds": "bpf_too_many_interpreter_frames",
    "ring held something else than records": "ring_record_invalid",
    "thread blocked before the stop": "thread_blocked_before_stop",
    "thread ran while it was read from outside": "thread_ran_while_read",
    "sleeping thread not stopped: its system call might fail": "sleeping_thread_not_stopped",
    "modules changed while a sample was taken": "modules_changed",
    "stack longer than --stack-size, cut there": "stack_size_exceeded",
    "stack completed by the outer frames of a later one of its thread": "stack_completed",
    "child ended before its first sample": "process_ended_early",
    "process ended before its first sample": "process_ended_early",
    "child may not be looked at": "process_not_permitted",
    "process may not be looked at": "process_not_permitted",
    "process may not be looked at any more": "process_permission_lost",
    "thread may not be traced": "thread_not_traceable",
    "thread held by a debugger": "thread_held_by_debugger",
    "thread did not stop within 0.1 s": "thread_stop_timeout",
    "thread ran code of another architecture": "thread_of_other_architecture",
    "thread ended while it was looked at": "thread_ended",
    "too many processes began at once to follow them all": "too_many_new_processes",
    "system call of the target restarted": "system_call_restarted",
    "system call of the target may have failed with EINTR": "system_call_interrupted",
    "connection to the stub ended early": "stub_connection_ended",
    "file fetched through the stub": "file_fetched_from_stub",
    "file differs from the mapped one": "mapped_file_replaced",
    "file of a module not found": "module_file_not_found",
    "file could not be compared with the mapped one": "module_file_not_compared",
    "neither file nor symbol file of a module found": "module_without_symbols",
    "deleted file read from memory": "deleted_file_read",
    "broken ELF image in memory": "memory_image_broken",
    "broken section headers": "section_headers_broken",
    "broken section headers of a windows module": "pe_section_headers_broken",
    "shared debug file not found": "shared_debug_file_not_found",
    "debug file of another build": "debug_file_of_other_build",
    "unreadable debug file": "debug_file_unreadable",
    "symbol file of another build, not used": "symbol_file_of_other_build",
    "symbol file that cannot be read": "symbol_file_not_opened",
    "symbol server does not answer": "symbol_server_timeout",
    "file not read: its file system does not answer": "file_system_timeout",
    "broken symbol table": "symbol_table_not_used",
    "broken DWARF": "dwarf_broken",
    "lines not looked up: out of time": "line_lookup_timeout",
    "names not looked up: out of time": "name_lookup_timeout",
    "addresses of the kernel's functions are hidden": "kernel_addresses_hidden",
    "core without NT_FILE, and its program was not found: modules not known": "core_without_file_list",
    "program file differs from the one that the core is of": "core_program_differs",
    "core file is cut off: bytes missing": "core_truncated",
    "core file cut off in its notes": "core_notes_truncated",
    "core note cut off": "core_note_truncated",
    "thread without its registers": "thread_without_registers",
    "thread without an id of its own": "thread_without_id",
    "minidump without a list of modules: made up from its mappings": "minidump_without_modules",
    "minidump cut off: memory missing": "minidump_truncated",
    "microdump: malformed line": "microdump_line_invalid",
    "module overlaps another: left out": "module_overlap",
    "unwind rules that compute too much": "unwind_rules_too_costly",
    "no table in .eh_frame_hdr: .eh_frame indexed": "eh_frame_hdr_without_table",
    "broken table in .eh_frame_hdr: .eh_frame indexed": "eh_frame_hdr_table_broken",
    "sframe: index said to be sorted is not": "sframe_index_not_sorted",
    "exidx: index is not sorted": "exidx_index_not_sorted",
    "exidx: index ends within an entry": "exidx_index_truncated",
    "exidx: broken entry left out": "exidx_entry_broken",
    "sframe: unknown flags": "sframe_flags_unknown",
    "sframe: functions have more rows than the header says": "sframe_row_count_wrong",
    "sframe: function with broken rows": "sframe_function_broken",
    "sframe: row of .plt.got corrected": "sframe_plt_got_corrected",
    "go: function with broken rows": "go_function_broken",
    "STACK CFI without a usable .cfa or .ra: row left out": "stack_cfi_row_unusable",
    "STACK CFI: unknown register": "stack_cfi_register_unknown",
    "STACK CFI: rule of a register not usable": "stack_cfi_rule_unusable",
    "libunwind: list changed while it was read": "libunwind_list_changed",
    "libunwind: list has no end": "libunwind_list_endless",
    "libunwind: list not usable": "libunwind_list_unusable",
    "libunwind: registration not usable": "libunwind_registration_unusable",
    "libunwind: table not usable": "libunwind_table_unusable",
    "gdb jit: list changed while it was read": "gdb_jit_list_changed",
    "gdb jit: list has no end": "gdb_jit_list_endless",
    "gdb jit: object file not usable": "gdb_jit_file_unusable",
    "gdb jit: descriptor not usable": "gdb_jit_descriptor_unusable",
    "hotspot: virtual machine not readable": "hotspot_unreadable",
    "v8: engine not readable": "v8_unreadable",
    "v8: frames whose function was not readable": "v8_function_unreadable",
    "jitdump: too large, the rest is not read": "jitdump_too_large",
    "jitdump: broken, the rest is not read": "jitdump_broken",
    "jitdump: moved code that was never loaded": "jitdump_move_unknown",
    "jitdump: broken table": "jitdump_table_broken",
    "perf map: too large, the rest is not read": "perf_map_too_large",
    "perf map: too many lines, the rest is not read": "perf_map_too_many_lines",
    "perf map: line not understood": "perf_map_line_invalid",
    "python frames beyond a native stack that is cut short": "python_frames_beyond_stack",
    "python frames on no native frame": "python_frames_without_place",
    "python frames without a mark on the C stack": "python_frames_without_marker",
    "evaluator on the stack without python frames": "evaluator_without_frames",
    "chain of python frames not whole": "python_frame_chain_broken",
    "more python frames than are copied": "python_frame_chain_too_long",
    "stack goes on at the evaluator's mark, native frames before it may be missing": "stack_resumed_at_evaluator",
    "python function freed before its name was read": "python_function_freed",
    "reader of an interpreter's frames failed, its frames are left out": "interpreter_reader_failed",
    "spool: segment dropped, older than spool.max_age": "segment_dropped_max_age",
    "spool: segment dropped, more than spool.max_files": "segment_dropped_max_files",
    "spool: segment dropped, more than spool.max_bytes": "segment_dropped_max_bytes",
    "spool: segment dropped, the disk is full": "segment_dropped_disk_full",
    "spool: segment lost, it could not be written": "segment_not_written",
    "spool: window not kept for pyprof agent record, it could not be written": "window_not_kept",
    "spool: file that is no segment": "spool_file_not_segment",
    "spool: refused segment dropped, more than are kept": "refused_segment_dropped",
    "push: later, no connection": "push_later_unreachable",
    "push: later, no answer in time": "push_later_timeout",
    "push: later, no secure connection": "push_later_insecure",
    "push: later, the file of a token or password": "push_later_credentials",
    "push: later, the credentials are not taken": "push_later_unauthorized",
    "push: later, there is no such service": "push_later_not_there",
    "push: later, too much at a time": "push_later_limited",
    "push: later, the receiver failed": "push_later_unavailable",
    "push: later, the receiver is elsewhere": "push_later_redirected",
    "push: later, the answer is none": "push_later_nonsense",
    "push: later, the folder does not take it": "push_later_disk",
    "push: later, another answer": "push_later_otherwise",
    "push: refused, the receiver does not want it": "push_refused_bad_request",
    "push: refused, it is too large": "push_refused_too_large",
    "push: refused, it is too old": "push_refused_too_old",
    "push: refused, it ends in the future": "push_refused_too_new",
    "push: refused, it has more sets of labels than the receiver takes": "push_refused_too_many_series",
    "push: refused, the receiver rejected profiles of it": "push_refused_rejected",
    "push: refused, it cannot be read": "push_refused_unreadable",
    "push: refused, others are taken, it is not": "push_refused_never_taken",
}
"""Keys of counters, by the sentences that older versions have in place of the keys."""

_COUNTERS_WITH_DETAIL = {
    ("process ", " has too many mappings to read all: its stacks may be cut"): "too_many_mappings",
    ("system call of the target cut short by a stop: ", ""): "system_call_cut_short",
    ("symbol file: ", ""): "symbol_file_line_invalid",
    ("core note not understood: ", ""): "core_note_invalid",
    ("minidump: ", ""): "minidump_stream_invalid",
    ("", ": broken, not used"): "unwind_table_broken",
    ("", ": broken entry, skipped"): "unwind_entry_broken",
    ("", ": function with broken instructions"): "cfi_function_broken",
    ("", ": unreadable FDE left out"): "fde_unreadable",
    ("", ": functions of an unreadable CIE left out"): "cie_unreadable",
    ("", " breaks off: the rest is not used"): "cfi_section_truncated",
    ("libunwind: ", ""): "libunwind_region_not_described",
    ("python frames not read: ", ""): "python_not_readable",
    ("chain of python frames: ", ""): "python_frame_chain_unread",
    ("--async: CPython ", " does not say which tasks await which: from 3.14 on"): "async_not_supported",
}
"""Names of counters with a detail, by the parts of the old sentence before and after the detail. The first entry that
matches applies.
"""

_PROBLEMS = {
    "its unwind rules need too much computation": "rules_compute_too_much",
    "no unwind sections": "no_unwind_tables",
    "windows module without a symbol file": "windows_without_symbols",
    "neither its file nor a symbol file found": "neither_file_nor_symbols",
    "file differs from the mapped one": "file_differs",
    "not used, because it is not proved": "file_not_proved",
    "file not found": "file_not_found",
    "not asked again": "symbol_server_silent",
    "broken symbol table": "symbol_table_broken",
    "no symbols: only exported names": "exported_names_only",
    "no names: the time to look them up ended": "no_time_for_names",
    "line numbers only in part: the time": "no_time_for_lines",
    "line numbers only in part: reading": "lines_take_long",
    "broken DWARF": "debug_information_broken",
    "split DWARF": "debug_information_split",
    "code generated at run time, without names": "code_without_names",
    "the perf map was not read": "perf_map_silent",
    "the file is too large: the rest is not read": "code_file_too_large",
    "addresses of the kernel's functions are hidden": "kernel_addresses_hidden",
    "file not read: its file system does not answer": "file_system_timeout",
}
"""Names of the reasons for problems of files, by the beginning of the sentence that older recordings have instead."""

_NOTES = {
    "Sampled by a program in the kernel (BPF)": "by_program",
    "Sleeping threads were read from outside: none was stopped": "sleepers_from_outside",
    "idle: only waits for work were recorded; they are shown": "only_idle",
    "Time in the kernel has no samples; to sample it: sudo sysctl kernel.perf_event_paranoid=1": "kernel_not_sampled",
    "The recording was interrupted or is still running: it ends with the last second that was written.": (
        "recording_interrupted"
    ),
    "A part of what was kept could not be read.": "kept_unreadable",
}
"""Identifiers of notes without arguments, by the sentences that older versions have in place of the identifiers."""
# fmt: on


def counter_key(name: str) -> str:
    """Return the key of a counter by its name in a file of any version."""
    if name in _COUNTERS:
        return _COUNTERS[name]
    for (before, behind), key in _COUNTERS_WITH_DETAIL.items():
        detail = name[len(before) : len(name) - len(behind)]
        if detail and name.startswith(before) and name.endswith(behind):
            return f"{key}:{detail}"
    return name


def problem_reason(text: str) -> str:
    """Return the name of the reason of a problem by its text, "" if it is not known."""
    return next((reason for before, reason in _PROBLEMS.items() if text.startswith(before)), "")


def note_reason(text: str) -> str:
    """Return the name of the reason of a note by its sentence, "" if it is not known."""
    return _NOTES.get(text, "")


_ROWS_OF_1 = """\
-- The names of functions. Names that are looked up later only change this table and lines.
CREATE TABLE functions (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL, -- demangled, or module!0xstart of a function without a name
  system_name TEXT, -- as the symbol table has it; NULL: no symbol, only its start is known
  source INTEGER NOT NULL -- name_sources.id
);

-- Source files.
CREATE TABLE files (
  id INTEGER PRIMARY KEY, -- from 1 on
  path TEXT NOT NULL -- as the debug information, or the interpreter, says
);

-- The frames of stacks: one address and what is known of it.
CREATE TABLE frames (
  id INTEGER PRIMARY KEY, -- from 1 on
  kind INTEGER NOT NULL, -- codes: frame_kind
  trust INTEGER NOT NULL, -- codes: trust, the source that found the frame
  module INTEGER, -- modules.id; NULL: in no module
  rel INTEGER, -- pc, counted from the module's first byte; NULL: not known
  pc INTEGER, -- address as found on the stack, as a signed 64-bit number; NULL: none, as of a marker
  back INTEGER NOT NULL, -- bytes from the address that names were looked up for to pc: 1 of a return address
  title TEXT -- what to show for the frame; NULL: the name of its outermost function
);

-- The functions of a frame, innermost first: those inlined, then the one that holds them. None: no name is known.
CREATE TABLE lines (
  frame INTEGER NOT NULL, -- frames.id
  depth INTEGER NOT NULL, -- from 0, the innermost
  function INTEGER NOT NULL, -- functions.id
  "offset" INTEGER NOT NULL, -- bytes from the function's start
  file INTEGER, -- files.id; NULL: not known
  line INTEGER, -- NULL: not known
  PRIMARY KEY (frame, depth)
) WITHOUT ROWID;

-- The tree of stacks. A sample has the node of its innermost frame.
CREATE TABLE stacks (
  id INTEGER PRIMARY KEY, -- from 1 on, each parent before its children
  parent INTEGER, -- stacks.id of the caller; NULL: the outermost frame
  frame INTEGER NOT NULL -- frames.id
);
"""

_BLOCKS_OF_2 = ("function_blocks", "file_blocks", "frame_blocks", "line_blocks", "stack_blocks")

_NEW_IN_3 = ("labels",)

_UNTIL_3 = """\
-- The options with which it was recorded.
CREATE TABLE options (
  name TEXT PRIMARY KEY, -- a field of pyprof.RecordOptions
  value TEXT NOT NULL -- as text
) WITHOUT ROWID;

-- Where names come from.
CREATE TABLE name_sources (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL -- recorded: looked up by the recording itself
);
"""


_UNTIL_4 = """\
-- What was counted on the way: what was lost, skipped or refused.
CREATE TABLE counters (
  name TEXT PRIMARY KEY, -- a sentence of docs/formats.md
  count INTEGER NOT NULL -- how often
) WITHOUT ROWID;

-- What object files lack, and what helps.
CREATE TABLE problems (
  id INTEGER PRIMARY KEY, -- from 1 on
  module INTEGER NOT NULL, -- module_sums.id
  "text" TEXT NOT NULL, -- what it lacks
  remedy TEXT NOT NULL -- a command; '': nothing is known to help
);
"""

_UNTIL_5 = """\
-- Sentences for the reader of the recording.
CREATE TABLE notes (
  id INTEGER PRIMARY KEY, -- from 1 on
  "text" TEXT NOT NULL -- a sentence
);

-- What object files lack, and what helps.
CREATE TABLE problems (
  id INTEGER PRIMARY KEY, -- from 1 on
  module INTEGER NOT NULL, -- module_sums.id
  reason TEXT NOT NULL, -- identifier of docs/formats.md; '': not known
  "text" TEXT NOT NULL, -- what it lacks
  remedy TEXT NOT NULL -- a command; '': nothing is known to help
);

-- Languages whose functions were looked for.
CREATE TABLE languages (
  id INTEGER PRIMARY KEY, -- from 1 on
  name TEXT NOT NULL, -- such as Python
  remedy TEXT NOT NULL -- the option that has their functions; '': none
);

-- Processes that ran functions of a language which nobody read.
CREATE TABLE functions_missing (
  id INTEGER PRIMARY KEY, -- from 1 on
  language TEXT NOT NULL, -- such as Python
  value INTEGER NOT NULL, -- the primary value of those stacks
  remedy TEXT NOT NULL, -- the option that has them; '': none
  kernel INTEGER NOT NULL -- 1: the kernel's frames were asked for, which stops cannot see
);
"""


def tables_of(version: int) -> dict[str, Table]:
    """Return the tables of a recording file, by its format version."""
    since: dict[int, tuple[str, ...]] = {2: _BLOCKS_OF_2, 3: _NEW_IN_3}
    new = {name for later, names in since.items() if later > version for name in names}
    found = {name: table for name, table in parse_tables().items() if name not in new}
    if version <= 3:
        found |= parse_tables(_UNTIL_3)
    if version <= 5:
        found |= parse_tables(_UNTIL_5)
    if version <= 4:
        found |= parse_tables(_UNTIL_4)
    return found | parse_tables(_ROWS_OF_1) if version == 1 else found


def upgrade(database: sqlite3.Connection, version: int, size: int) -> None:
    """Convert the database of an older recording file to the current version.

    Args:
        database: The database.
        version: Format version of the file.
        size: Size of the file in bytes.

    Raises:
        FormatError: A row is invalid.
        sqlite3.Error: The database is broken.
    """
    while step := _UPGRADES.get(version):
        step(database, size)
        version += 1


def _to_2(database: sqlite3.Connection, size: int) -> None:
    """Convert a recording file's rows of frames, functions, files and stacks to blocks (format version 2)."""
    rows = TableRows(database, size, tables_of(1))
    for name in _BLOCKS_OF_2:
        database.execute(parse_tables(SCHEMA)[name].sql)
    blocks = BlockWriter(database)
    try:
        numbers = _frames(rows, blocks)
        _stacks(rows, blocks, numbers)
    except OverflowError:
        raise FormatError("frames", 0, "a number is none that an address can be") from None
    marks = [
        (int(numbers[check_reference("marks", 0, frame, len(numbers) - 1) + 1]), *rest)
        for frame, *rest in rows("marks")
    ]
    database.execute("DELETE FROM marks")
    database.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)", marks)
    for name in parse_tables(_ROWS_OF_1):
        database.execute(f"DROP TABLE {name}")


def _frames(rows: TableRows, blocks: BlockWriter) -> I64:
    """Convert the frames of an old recording file.

    Returns:
        New frame number by old one. Number 0 stands for no frame.
    """
    stored, functions = rows("frames"), rows("functions")
    files = [blocks.add_file(path) for _, path in rows("files")]
    lines: dict[int, list[LineRow]] = {}
    for nth, (frame, depth, function, offset, file, line) in enumerate(rows("lines"), 1):
        rel = stored[check_reference("lines", nth, frame, len(stored))][4] or 0
        _, name, system_name, source = functions[check_reference("lines", nth, function, len(functions))]
        of_frame = lines.setdefault(frame, [])
        if depth != len(of_frame):
            raise FormatError("lines", nth, "functions of a frame are not in order from 0 on")
        start = _signed(rel - offset)
        path = 0 if file is None else files[check_reference("lines", nth, file, len(files))]
        of_frame.append((start, blocks.add_function(name, system_name, source, start % (1 << 64)), path, line or 0))
    frames = []
    for at, kind, trust, module, rel, pc, back, title in stored:
        place = rel or 0
        named = 0 if title is None else blocks.add_function(title, None, 1, place % (1 << 64))
        base = _signed((pc or 0) - place)
        frames.append((module or 0, place, base, back, trust, kind, named, tuple(lines.get(at, ()))))
    return np.concatenate([[0], blocks.add_frames(frames)])


def _stacks(rows: TableRows, blocks: BlockWriter, numbers: I64) -> None:
    stored = rows("stacks")
    for at, parent, frame in stored:
        if not 0 <= (parent or 0) < at or not 1 <= frame < len(numbers):
            raise FormatError("stacks", at, "refers to a row that is not before it")
    nodes = np.array([(parent or 0, frame) for _, parent, frame in stored], np.int64).reshape(-1, 2)
    blocks.add_stacks(nodes[:, 0], numbers[nodes[:, 1]])


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _to_3(database: sqlite3.Connection, size: int) -> None:
    """Add the table of labels, which is empty, to an old recording file (format version 3)."""
    for name in _NEW_IN_3:
        database.execute(parse_tables()[name].sql)


def _to_4(database: sqlite3.Connection, size: int) -> None:
    """Replace two tables of an old recording file whose description changed (format version 4). Their rows stay the
    same.
    """
    for name in parse_tables(_UNTIL_3):
        kept = database.execute(f"SELECT * FROM {name}").fetchall()
        database.execute(f"DROP TABLE {name}")
        database.execute(parse_tables()[name].sql)
        database.executemany(f"INSERT INTO {name} VALUES (?, ?)", kept)


def _to_5(database: sqlite3.Connection, size: int) -> None:
    """Replace the sentences of counters by identifiers, and add those of problems (format version 5)."""
    rows = TableRows(database, size, tables_of(4))
    counters: Counter[str] = Counter()
    for name, count in rows("counters"):
        counters[counter_key(name)] += count
    problems = rows("problems")
    for name in parse_tables(_UNTIL_4):
        database.execute(f"DROP TABLE {name}")
        database.execute(parse_tables()[name].sql)
    try:
        database.executemany("INSERT INTO counters VALUES (?, ?)", counters.items())
    except OverflowError:
        raise FormatError("counters", 0, "a number that no recording has") from None
    database.executemany(
        "INSERT INTO problems VALUES (?, ?, ?, ?, ?)",
        [(at, module, problem_reason(text), text, remedy) for at, module, text, remedy in problems],
    )


def _to_6(database: sqlite3.Connection, size: int) -> None:
    """Replace the sentences of notes by identifiers and arguments, and rename the columns of hints (format version
    6).
    """
    rows = TableRows(database, size, tables_of(5))
    for name in parse_tables(_UNTIL_5):
        kept = rows(name)
        if name == "notes":
            kept = [note_row(at, _find_note(text)) for at, text in kept]
        database.execute(f"DROP TABLE {name}")
        database.execute(parse_tables()[name].sql)
        database.executemany(insert_statement(name), kept)


def _find_note(text: str) -> Note:
    reason = note_reason(text)
    return make_note(reason) if reason else make_note("older_sentence", text=text)


_UPGRADES: dict[int, Callable[[sqlite3.Connection, int], None]] = {1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5, 5: _to_6}
"""Functions that convert a recording file to the next format version, by the version from which they convert."""
