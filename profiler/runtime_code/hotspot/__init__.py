"""The code of Java virtual machines (HotSpot), read from outside.

blob_cache    HotSpot's code cache: the heaps of generated code, and the blob that covers an address
methods       Java methods: names, source files, lines, and the scopes of compiled code
rules         Unwind rules for HotSpot's generated code on x86-64
scope_reader  The debugging information of a compiled method in the process
source        The Java virtual machine of one process as a source of code descriptions
stub_names    Names of HotSpot's stubs, such as call_stub or jbyte_arraycopy, from the list of their descriptions
thread_names  Names that Java code gave to the threads of a Java virtual machine
vm            One Java virtual machine whose layout is known: its code, its frames' rules, and their methods
vm_structs    The layout of HotSpot's data structures, which libjvm.so exports for debuggers
"""
