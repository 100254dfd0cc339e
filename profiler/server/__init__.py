"""`pyprof server`: a fleet's windows, kept as files, indexed in ClickHouse, asked over HTTP and in a page.

In: segments of agents. Out: answers as JSON, profiles in every format, a page. The segment files are the truth: a
window is acknowledged when its file is durable, and the database is an index of the files that can be made anew.

access     Who may write and read: tokens of tenants
answers    The answers of the query interface, as values for JSON
app        The HTTP interface: routes, limits, refusals
config     The configuration: TOML in, checked values out
engine     What answers SQL: ClickHouse in this process (chdb), or a server
files      The segments that were taken, as files
frames     A frame as a text of the database, and back
index      The thread that brings files into the database, and drops what is too old
merged     From rows of the database to a Profile
numbers    The server's own numbers, for /metrics
receiving  What agents of other projects push, as segments of ours
rows       From a segment to rows of the database
selection  Which samples a question is about, from its words
serving    A server from its configuration: everything opened in order, and closed
store      What is asked of the database
tables     The tables and their migrations, from tables.sql, in the dialect of an engine
"""
