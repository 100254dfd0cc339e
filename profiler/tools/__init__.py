"""What `inspect`, `symbols` and `doctor` are made of, and what `report` reads of files.

What they parse is foreign: a worker runs them, and sends values (session/worker/errands.py).

disassembly        Machine code as instructions, by objdump of binutils
file_reports       What `inspect` asks of a file: overview, rows, differences
function_code      What `report` lets a worker read of files
inspection         What the unwind tables of one file say: counts, rows, and where two sources disagree
survey             What each module of a process offers: unwind sections, symbols, frame pointers
survey_code        What a process says about the code that it makes at run time
symbol_functions   FUNC records of a symbol file from DWARF
symbol_inspection  What a Breakpad symbol file says: how many records of each kind, and its rules
symbol_writer      A Breakpad symbol file from an ELF file
"""
