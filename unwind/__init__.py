"""Tables and the walk: registers, stack bytes and modules in, addresses out.

formats/          Readers of unwind formats
heuristics/       Callers for frames without tables, and walks that are kept
base              What a source of unwind rules is
code              Code of the target: decides whether a word can be a return address
columns           Rows in a form for programs
describe          Rules as algebra, for people and for tests: "cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]"
exception_return  What a Cortex-M's hardware pushed when it interrupted code (ARMv8-M ARM, "Exception entry"
expr              DWARF expressions as CFI uses them: a stack machine over the registers and memory of one frame
function_starts   Starts of functions, from tables that have an entry for each function
index             Lookup of pc to rule: module, source, row
memory            The memory of one sample: its stack copy and its further pieces, and nothing else
rules             The one vocabulary in which every unwind format ends
runtime           What the walk asks about code that no file describes: the rules that its process has registered
scalar            One frame, and the walk of one sample, with all registers in plain integers
sigreturn         The kernel's signal frame where no table covers the trampoline, by its known layout
single_lane       One lane, frame by frame
sources           Which sources of unwind rules a module has, and in which order they are asked
step              One step of many lanes at once
table             All rules of a recording, each once, with columns for those that the batch walker can execute
unwinder          Entry point of unwinding: sample batches in, walks out
walk              The walk of a batch
"""
