"""`pyprof top`: a running recording, shown as it goes.

Each second a thread takes a window and makes an immutable snapshot of all that was seen. The screen shows a snapshot
through a View; keys create another View. Snapshots and views are independent of each other.

caller_callee_tree  The callers and callees of a row of the table, as a tree
cost_totals         Costs of functions, threads, processes, modules, lines and native functions in one window
event_loop          The event loop of the screen, the keys and the newest snapshot
keys                The table of keys: their effects on the view, and their help texts
plain_tables        Tables for scripts, and for terminals that cannot be drawn on
screen_lines        The interface of a screen, and its lines (or those of a script) from a snapshot and a view
snapshot_merge      Merges the windows of a recording into snapshots, and saves a snapshot
terminal_screen     A screen on a terminal, which is always restored
top_recordings      The recordings of one session: a change of mode needs another recording
top_session         One invocation on a terminal: the recording, the screen, signals, a command's own output
view_choices        The values that a view can have: words for the command line, the keys and the screen
view_state          The state of the display: table, sorting, span, search, selection
"""
