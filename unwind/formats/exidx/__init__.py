"""ARM exception index tables.

prologue_rows  Rows inside a function's prologue and epilogues, which EXIDX does not describe, from its ARM instructions
rules          The unwinding instructions of an EXIDX entry (ARM EHABI): their decoder, and a compiler to a Rule
section        The ARM exception index (.ARM.exidx, .ARM.extab) as an unwind source
"""
