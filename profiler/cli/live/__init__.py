"""`pyprof top`: a recording, watched while it runs.

A thread takes a window each second and makes an immutable snapshot of all that was seen. The screen shows snapshots by
one View; keys make another View of it. Neither knows of the other.

choices    Between what a view chooses: words for the command line, the keys and the screen
feed       A thread that makes a snapshot of each window of a recording
gathering  Windows of a recording, one after the other, as snapshots
keys       The table of keys: what each does to the view, and what the help says
loop       The screen, the keys and the newest snapshot, until the user leaves
picture    From a snapshot and a view to the lines of a screen; from a snapshot to the text of a script
saving     What was seen, in a file of any format
screen     What a screen can do, and what is drawn on it
session    One invocation on a terminal: the recording, the screen, signals, a command's own output
stacks     Who calls a row of the table, and what it calls, as a tree
tables     Tables for scripts, and for terminals that cannot be drawn on
tally      Costs of functions, threads, processes, modules, lines and native functions in one window
terminal   A screen on a terminal, which is restored whatever happens
view       What is shown, and how: one value
watched    What is watched, by one recording after the other: another mode needs another recording
"""
