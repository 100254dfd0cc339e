"""`pyprof server`: the windows of a fleet, stored as files, indexed in ClickHouse, queried over HTTP and in a page.

The input is segments from agents. The output is JSON, profiles in every format, and a page. The segment files are
authoritative: the server acknowledges a window when its file is durable. The database is an index of the files that can
be rebuilt.

access     Authorization: tokens of tenants for reading and writing
query_api  The responses of the query interface, as values for JSON
app        The HTTP interface: routes, limits, refusals
blocks     Conversion of segments to blocks of the tables, one for each table
config     The configuration: TOML in, checked values out
rollup_plan  Query plan: hourly rollups for whole hours, raw windows for the rest
engine     The SQL engines: ClickHouse in this process (chdb), or a ClickHouse server
files      The received segments, as files
frames     Conversion of a frame to a text of the database, and back
health     Checks whether the disk takes segments and the database answers
rollups    Hourly rollups: creation, and replacement of the raw windows of old days
index      The thread that brings files into the database, and drops what is too old
frame_cache   Cache of the frames in a tenant's segments
ingest_process  A separate process that reads large request bodies
merged     Conversion of rows of the database to a Profile
native_format  A block of rows in ClickHouse's Native format, column after column
metrics    The server's own metrics, for /metrics
body_rate_limit  Rate limit for large request bodies
header_timeout  Limits for the time and size of a request's header
queries    Queries of the database
receiving  Conversion of other projects' pushes to segments
refusal_log  Log lines about refused requests, limited in rate
rows       Conversion of a segment to rows of the database
selection  The selection of samples in a query's parameters
series_limit  Limit for the sets of labels that a tenant may send in a day
serving    A server from its configuration: everything opened in order, and closed
stacks     Stacks that the server has read, by their digests and numbers
store      Inserts into the database and deletions
row_cache  Cache of the stacks and series in the database
symbol_files  Symbol files that were uploaded, and names from them
tables     The tables and their migrations, from tables.sql, in the dialect of an engine
ingest     Ingest of segments: stored durably, or refused
ingest_pool     Threads that read and write incoming segments
unit       The systemd unit of the server
"""
