"""The code of Java virtual machines (HotSpot), read from outside.

active_inlined_methods  The inlined methods that are proven to be active at a sampled pc of compiled Java code
code_cache              HotSpot's code cache: the blob that covers an address, and the names of stubs
java_code_source        The Java virtual machine of one process as a source of code descriptions
java_frames             One Java virtual machine whose layout is known: its code, its frames' rules, and their methods
methods                 Java methods of a process: names, source files, lines, and the scopes of compiled code
stack_words             Return addresses and interpreter frames of Java in stack copies that wait to be unwound
thread_names            Names that Java code gave to the threads of a Java virtual machine
unwind_rules            Unwind rules for HotSpot's generated code on x86-64
vm_structs              The layout of HotSpot's data structures, which libjvm.so exports for debuggers
"""
