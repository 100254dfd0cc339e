"""Recording files: a SQLite database that holds a complete profile.

A Profile is written to a file, and a file, which is untrusted input, is read as a Profile. docs/sql.md has the format.

checked_rows         Reads the rows of a recording file and checks the type of each cell
column_blocks        Columns of numbers and blocks of items, packed for a recording file and unpacked from an untrusted
                     one
reader               Reads a recording file as a Profile
schema               The tables of a recording file: one SQL text
sql_views            SQL access to a recording: views of the samples and the names
summary_rows         Converts a Summary to rows of a recording file, and back
untrusted_recording  Opens a recording file as a private database in memory
upgrades             Converts files of older versions, and sentences in them to identifiers
writer               Writes a profile as a recording file: at once, or as a journal that grows
"""
