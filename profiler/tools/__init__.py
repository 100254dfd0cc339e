"""The parts of `inspect`, `symbols` and `doctor`, and those of `report` that read files.

They parse foreign files, so they run in a worker process, which sends back values (session/worker/one_shot_tasks.py).

breakpad_func_records    FUNC records of a symbol file from DWARF
breakpad_inspection      The content of a Breakpad symbol file: number of records of each kind, and its rules
breakpad_writer          A writer of a Breakpad symbol file from an ELF file
inspect_worker_requests  One-shot tasks of `inspect` for a worker: overview, rows, differences
module_survey            The unwind sections, symbols and frame pointers of each module of a process
report_tasks             One-shot tasks of `report` for a worker: names of frames, instructions of a function
unwind_inspection        The content of one file's unwind tables: counts, rows, and differences between two sources
"""
