"""The code of V8, the JavaScript engine of Node.js, read from outside.

functions        JavaScript functions on V8's heap: names, scripts, lines, and tables of source positions
heap             Bounded reads of objects on V8's heap, by the layout that V8 exports for debuggers
js_frames        One V8 whose layout is known: its generated code, and the functions of its frames
managed_runtime  The V8 of one process as a source of code descriptions
stack_calls      The calls in V8's code that the stack copies of a batch contain, found before the batch is unwound
unwind_rules     Unwind rules for V8's code on x86-64
wasm             The functions of WebAssembly code, by the jump table of an instance
"""
