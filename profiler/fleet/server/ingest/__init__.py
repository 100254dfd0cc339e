"""The way of a segment into the server: it is received, stored as a file, converted to rows, and indexed.

database_indexer    The thread that inserts segments into the database, and drops what is too old
foreign_pushes      Conversion of other projects' pushes to segments: the sender of each URL path, and its response
ingest_app          Ingest of segments: they are stored durably, or refused with a reason
large_body_process  A process with low priority that reads large bodies and expensive ones, one at a time
segment_files       The received segments, as files TENANT/DAY/SERVICE/END_NS-KEY.pb.gz
segment_to_rows     Conversion of a segment to rows of the database (tables.sql), and of frames to texts and back
stack_caches        Caches of a tenant's frames and stacks, so that a known stack is not read again
"""
