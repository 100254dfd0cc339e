"""Recording files: a SQLite database that holds a complete profile.

A Profile is written to a file, and a file, which is untrusted input, is read as a Profile. docs/sql.md has the format.

block_reader         Unpacks blocks to the columns that they were made of
block_writer         Packs numerous items (frames, functions, names, stacks) as columns of blocks
checked_rows         Reads the rows of a recording file and checks the type of each cell
column_codec         Codec for columns of numbers
journal              A recording file that grows while its window is being recorded
name_codes           Numbers that stand for names in a recording file
older_names          Identifiers of counters and problems that files of older versions name by sentences
reader               Reads a recording file as a Profile
schema               The tables of a recording file: one SQL text
sql_views            SQL access to a recording: views of the samples and the names
summary_rows         Converts a Summary to rows of a recording file, and back
untrusted_recording  Opens a recording file as a private database in memory
upgrades             Converts files of older versions
writer               Writes a profile as a recording file, as an exporter
"""
