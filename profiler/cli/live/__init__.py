"""`pyprof top`: a running recording, shown as it goes.

Each second a thread takes a window and makes an immutable snapshot of all that was seen. The screen shows a snapshot
through a View; keys create another View. Snapshots and views are independent of each other.

costs            Costs in one window of functions, threads, modules and lines, and callers and callees of a row
snapshots        Snapshots of a running recording: its windows merged one after the other
terminal_screen  A screen on a terminal, which is always restored, and the lines that it shows
top_session      One invocation of `pyprof top`: recordings, event loop, screen or tables, signals, a command's own
                 output
view_state       The current view of `pyprof top` as an immutable value, and the keys that change it
"""
