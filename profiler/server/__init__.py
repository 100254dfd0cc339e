"""`pyprof server`: a fleet's windows, kept as files, indexed in ClickHouse, asked over HTTP and in a page.

In: segments of agents. Out: answers as JSON, profiles in every format, a page. The segment files are the truth: a
window is acknowledged when its file is durable, and the database is an index of the files that can be made anew.

access     Who may write and read: tokens of tenants
answers    The answers of the query interface, as values for JSON
app        The HTTP interface: routes, limits, refusals
blocks     From segments to blocks of the tables, one for each table
config     The configuration: TOML in, checked values out
cover      Which rows a question counts: by hours, or by windows
engine     What answers SQL: ClickHouse in this process (chdb), or a server
files      The segments that were taken, as files
frames     A frame as a text of the database, and back
health     Checks whether the disk takes segments and the database answers
hours      Rows by hours are made, and take the place of those of old days
index      The thread that brings files into the database, and drops what is too old
known_frames  Frames that were read of a tenant's segments
large_bodies  Large bodies are read by another process
merged     From rows of the database to a Profile
native     A block of rows as ClickHouse reads it fastest, column after column
numbers    The server's own numbers, for /metrics
paced      Large bodies come slowly, and what is refused is not read
patience   How long a client may take to say what it wants
questions  What is asked of the database
receiving  What agents of other projects push, as segments of ours
refusal_log  Log lines about refused requests, limited in rate
rows       From a segment to what the database has of it
selection  Which samples a question is about, from its words
series_limit  How many sets of labels a tenant may send in a day
serving    A server from its configuration: everything opened in order, and closed
stacks     Stacks that the server has read, by their digests and numbers
store      What is put into the database and dropped
stored     Which stacks and series the database has
symbol_files  Symbol files that were uploaded, and names from them
tables     The tables and their migrations, from tables.sql, in the dialect of an engine
taking     How segments are taken: durable, or refused
taking_threads  Who reads what is sent, and who writes it
unit       The systemd unit of the server
"""
