"""The code of V8, the JavaScript engine of Node.js, read from outside.

engine     One V8 whose layout is known: its generated code, and the functions of its frames
functions  JavaScript functions on V8's heap: names, scripts and lines
heap       Bounded reads of objects on V8's heap
layout     The layout of V8's data structures: exported constants, and what differs between versions
positions  V8's tables of source positions, and its positions of inlined functions
rules      Unwind rules for V8's code on x86-64
source     The V8 of one process as a source of code descriptions
"""
