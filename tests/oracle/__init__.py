"""The single-step oracle: is the unwinder right at every instruction of a program?

    python -m tests.oracle [--from entry|start|SYMBOL] [--limit N] [--unwind LIST] [--json] PROGRAM [ARG...]

A program runs under PTRACE_SINGLESTEP. From the calls and returns alone a shadow stack is kept (shadow.py), which
knows nothing of unwind tables. Each state that the program passes through is sampled like a profiler would
(registers and a copy of the stack) and unwound by both walkers. What they find must be the shadow stack, to the last
frame, with the right frames marked exact, and must end at the root.

What the shadow stack is:

* It begins empty, at the first instruction of the new image ("entry": the dynamic loader's own entry, or the
  program's in a static binary) or of the program ("start", the default: the loader's work is skipped at full speed).
  Both are places that have no caller: there is nothing outside the shadow. "SYMBOL" begins to track at "start" too,
  and begins to compare when the symbol is first reached.
* A call pushes its return address, with the address of the slot where it stands. A return drops every entry whose
  slot lies below the new stack pointer. Instructions that raise the stack pointer past a slot without returning
  (longjmp, an exception's last step, `pop %rdx`) leave the entry in place until control moves by an indirect jump,
  a return or a call: until then the program is still on its way out of that frame.
* A return address that something overwrites in its slot (the unwinder's own last step into a handler) counts as what
  stands in memory at the return itself.
* A signal pushes the interrupted pc (exact: looked up as it is) and the restorer's address. rt_sigreturn drops both;
  so does leaving the handler's stack by longjmp.
* exec empties it.

Each state (pc, stack pointer, shadow stack) is unwound once, however often the program comes by; "instructions"
counts every step whose state was compared.
"""
