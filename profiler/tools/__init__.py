"""The parts of `inspect`, `symbols` and `doctor`, and those of `report` that read files.

These parts parse foreign files, so they run in a worker process, which sends back values
(session/worker/worker_client.py).

breakpad_writer          A writer of a Breakpad symbol file from DWARF, the symbol tables and the unwind tables of an
                         ELF file
inspect_tasks            One-shot tasks of `pyprof inspect` for a worker: a file's overview, rows, and differences
process_module_survey    The unwind sections, symbols and frame pointers of each module of a process
report_tasks             One-shot tasks of `pyprof report` for a worker: names of frames, instructions of a function
unwind_table_inspection  The content of one file's unwind tables or of a symbol file, for `pyprof inspect`
"""
