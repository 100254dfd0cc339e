"""The parts of `inspect`, `symbols` and `doctor`, and those of `report` that read files.

They parse foreign files, so they run in a worker process, which sends back values (session/worker/one_shot_tasks.py).

disassembly        Machine code as instructions, by objdump of binutils
file_reports       One-shot tasks of `inspect` for a worker: overview, rows, differences
function_code      One-shot tasks of `report` for a worker: names of frames, instructions of a function
inspection         The content of one file's unwind tables: counts, rows, and differences between two sources
survey             The unwind sections, symbols and frame pointers of each module of a process
survey_code        The code that a process has described at run time
symbol_functions   FUNC records of a symbol file from DWARF
symbol_inspection  The content of a Breakpad symbol file: number of records of each kind, and its rules
symbol_writer      A writer of a Breakpad symbol file from an ELF file
"""
