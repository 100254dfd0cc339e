"""Recordings that last: a SQLite database that holds all of a profile.

In: a Profile, or the bytes of a file, which are foreign. Out: the other one. docs/sql.md has the format.

blocks   Things of which a recording has many as columns of blocks
cells    The rows of a recording file, which is foreign input: each cell has the type that the schema says
codes    Numbers that stand for names in a recording file
columns  Columns of numbers as bytes: the data of a window of samples, or of a block of things
facts    What a recording did (model/summary.py) as rows of its file, and back
journal  A recording file that grows while its window is under way
opening  A recording file as a database in memory, which nothing else can change
query    A recording for SQL: views with the samples and the names, made by the reader
reader   A recording file as a Profile
schema   The tables of a recording file: one SQL text
unpacking  Blocks of things as the columns that they were made of
upgrades   Files of older versions
writer   A profile as a recording file: an exporter like the others
"""
