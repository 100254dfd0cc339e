"""Stack unwinding: registers, stack copies and modules in, frame addresses out.

batch_walk            The walk of a batch
code_analysis/        Unwind rules from machine code, for functions without unwind tables
dwarf_expressions     DWARF expressions in CFI: a stack machine over one frame's registers and memory, and a writer
exception_return      The frame that a Cortex-M pushes when it enters an exception handler
formats/              Readers of unwind formats
function_starts       Start addresses of functions, from tables that have an entry for each function, and from code
heuristics/           Callers of frames without unwind tables, and caches of earlier walks
interned_rules        All rules of a recording, interned, with columns for those that the native walker can execute
jit_rules             The interface to unwind rules that a process registers for code without a file
module_sources        The unwind sources of a module, and the order in which they are used
native_library        The native walker's object, its manifest, and whether it may be used
native_walk           The binding of the native walker: its structures, tables of rules by pc, and runs of frames
return_address_check  Code of the target, to decide whether a word can be a return address
rule_json             Unwind rules as named text fields, for JSON output and comparisons
rule_lookup           Lookup of the rule for a pc: module, source, row
rule_text             Unwind rules as text, for people and tests: "cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]"
rules                 The common form of the rules of all unwind formats, and the interface of a source of rules
sample_memory         The memory of one sample: its stack copy and its further pieces
scalar                The reference unwinder: one frame at a time, with all registers as Python integers
unwinder              Entry point of unwinding: sample batches in, walks out
"""
