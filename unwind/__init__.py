"""Stack unwinding: registers, stack copies and modules in, frame addresses out.

batch_unwinding        The walk of a batch
code_analysis/         Unwind rules from machine code, for functions without unwind tables
dwarf_expressions      DWARF expressions in CFI: a stack machine over one frame's registers and memory, and a writer
formats/               Readers of unwind formats
function_starts        Start addresses of functions, from tables that have an entry for each function, and from code
heuristics/            Callers of frames without unwind tables, and caches of earlier walks
module_unwind_sources  The unwind sources of a module and their order, and the interface to rules that a process
                       registers
native_unwinder        The binding of the native walker (native/walk): its file, its structures, its tables of rules,
                       and runs of frames
reference_unwinder     The reference unwinder: one frame at a time, with all registers as Python integers. It specifies
                       unwinding
rule_cache             All rules of a recording, interned, with columns for those that the native walker can execute
rule_lookup            Lookup of the rule for a pc: module, source, row
rule_text              Unwind rules as text for people and tests, and as named text fields for JSON
rules                  The common form of the rules of all unwind formats, and the interface of a source of rules
sample_memory          The memory of one sample: its stack copy and its further pieces
unwinder               Entry point of unwinding: sample batches in, walks out
"""
