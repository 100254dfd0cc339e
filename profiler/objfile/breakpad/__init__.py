"""Breakpad symbol files: search and content.

index         The index of a Breakpad symbol file: the places of its records, from one pass over the file
records       Parsers of the records of a Breakpad symbol file, and the identifiers of its module
symbol_file   A Breakpad symbol file whose records are read on demand
symbol_store  Search for symbol files in files, directories and servers, and checks of their text while it is copied
"""
