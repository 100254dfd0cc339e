"""The single-step oracle, which checks the unwinder at every instruction of a program.

    python -m tests.oracle [--from entry|start|SYMBOL] [--limit N] [--unwind LIST] [--json] PROGRAM [ARG...]

A program runs under PTRACE_SINGLESTEP. The oracle maintains a shadow stack from calls and returns alone (shadow.py),
independent of unwind tables. It samples each state of the program as a profiler does (registers and a copy of the
stack), and both walkers unwind it. Their result must equal the shadow stack up to the last frame, mark the right frames
as exact, and end at the root.

Rules of the shadow stack:

* It begins empty, at the first instruction of the new image ("entry": the entry point of the dynamic loader, or of a
  static program) or of the program ("start", the default: the loader runs at full speed). Both places have no caller.
  "SYMBOL" also begins to track at "start", and begins to compare when the symbol is first reached.
* A call pushes its return address with the address of its slot. A return drops every entry whose slot lies below the
  new stack pointer. Instructions that raise the stack pointer past a slot without returning (longjmp, an exception's
  last step, `pop %rdx`) keep the entry until an indirect jump, a return or a call: until then the program is still
  leaving that frame.
* If a return address is overwritten in its slot (by the unwinder's last step into a handler), the value in memory at
  the return counts.
* A signal pushes the interrupted pc, which is exact, and the restorer's address. rt_sigreturn drops both, and so does
  longjmp off the handler's stack.
* exec empties it.

Each state (pc, stack pointer, shadow stack) is unwound once, however often it recurs. "instructions" counts every step
whose state was compared.
"""
