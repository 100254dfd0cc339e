"""The code of V8, the JavaScript engine of Node.js, read from outside.

function_search_by_bytecode  The functions of V8's scripts by their bytecode
functions                    Functions in V8: names, scripts and lines of JavaScript functions on its heap, numbers of
                             WebAssembly functions
generated_code_reader        One V8 whose layout is known: its generated code, the functions of its frames, and calls in
                             stack copies
heap                         Bounded reads of objects on V8's heap, by the layout that V8 exports for debuggers
javascript_code_source       The V8 of one process as a source of code descriptions
unwind_rules                 Unwind rules for V8's code on x86-64
"""
