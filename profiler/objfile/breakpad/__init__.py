"""Breakpad symbol files: search and content.

ids            The identifier by which Breakpad identifies a module: its build ID as a GUID, or a hash of its code
index          The index of a Breakpad symbol file: the places of its records, from one pass over the file
records        Parsers of the records of a Breakpad symbol file, one line each
symbol_file    A Breakpad symbol file whose records are read on demand
symbol_server  An HTTP server of symbol files in the layout NAME/ID/NAME.sym, with a local cache
symbol_store   Search for symbol files in files, directories and servers
symbol_text    Decompression and checks of the text of a symbol file while it is copied
"""
