"""Recording files: a SQLite database that holds a complete profile.

A Profile is written to a file, and a file, which is untrusted input, is read as a Profile. docs/sql.md has the format.

blocks   Packs numerous items (frames, functions, names, stacks) as columns of blocks
cells    Reads the rows of a recording file and checks the type of each cell
codes    Numbers that stand for names in a recording file
columns  Codec for columns of numbers
facts    Converts a Summary to rows of a recording file, and back
journal  A recording file that grows while its window is being recorded
opening  Opens a recording file as a private database in memory
query    SQL access to a recording: views of the samples and the names
reader   Reads a recording file as a Profile
schema   The tables of a recording file: one SQL text
unpacking  Unpacks blocks to the columns that they were made of
upgrades   Converts files of older versions
writer   Writes a profile as a recording file, as an exporter
"""
