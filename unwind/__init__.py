"""Stack unwinding: registers, stack copies and modules in, frame addresses out.

formats/          Readers of unwind formats
heuristics/       Callers of frames without unwind tables, and caches of earlier walks
base              The interface of a source of unwind rules
code              Code of the target, to decide whether a word can be a return address
rule_json         Unwind rules as named text fields, for JSON output and comparisons
describe          Unwind rules as text, for people and tests: "cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]"
exception_return  The frame that a Cortex-M pushes when it enters an exception handler (ARMv8-M ARM, "Exception entry")
expr              Evaluation of the DWARF expressions in CFI: a stack machine over one frame's registers and memory
function_starts   Start addresses of functions, from tables that have an entry for each function
index             Lookup of the rule for a pc: module, source, row
memory            The memory of one sample: its stack copy and its further pieces
rules             The common form of the rules of all unwind formats
jit_rules         The interface to unwind rules that a process registers for code without a file
scalar            The reference unwinder: one frame at a time, with all registers as Python integers
sigreturn         The rule for the kernel's signal frame, by its layout, if no table covers the trampoline
single_lane       The walk of one sample, frame by frame
sources           The unwind sources of a module, and the order in which they are used
step              One unwind step of many samples at once
table             All rules of a recording, interned, with columns for those that the batch walker can execute
unwinder          Entry point of unwinding: sample batches in, walks out
walk              The walk of a batch
"""
