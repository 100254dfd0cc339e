"""Breakpad symbol files: where they are, what is in them.

ids            The identifier by which Breakpad knows a module: its build-id as a GUID, or a hash of its code
index          One pass over a Breakpad symbol file: where its records are, in columns
records        Records of a Breakpad symbol file, one line each: bytes in, values out
symbol_file    A Breakpad symbol file: indexed when opened, its records read when asked for
symbol_server  Symbol files of an HTTP server in the layout NAME/ID/NAME.sym, kept in a folder of this user
symbol_store   Where symbol files are
symbol_text    Text of symbol files as it comes in, unpacked and bounded
"""
