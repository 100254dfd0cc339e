"""The command line: one file for each subcommand.

accelerated_start       What makes a command start early: priority, garbage collector, a reduced numpy
arguments               Arguments that several commands share: types of values, and groups of options
comparison_table        A comparison as a table for the terminal
completion              `pyprof completion SHELL`: a completion script for the shell
diff                    `pyprof diff`: two recordings side by side, function by function, as a table, a page or data
doctor                  `pyprof doctor`: what will work here and on this process, before anything is attached
dump_core               `pyprof dump` of a core file or a crash dump: threads, why the process died, registers
dump_stacks             `pyprof dump`: the stacks of all threads, of a live process or a core file
front_process           A front process, which stays in the terminal's session while pyprof works in a separate one
inspect_unwind_tables   `pyprof inspect`: the unwind tables of a file
ipython_magic           `%load_ext pyprof` and `%%pyprof` in IPython and Jupyter: what a cell does, as a page below it
main                    The parser, and the one place that catches every named error
merge                   `pyprof merge`: several recordings, or other profilers' files, as one
number_and_name_format  Numbers as people read them, and names of functions that are shortened to the width of the
                        terminal
output_files            Output files: names are checked before recording, files are replaced atomically
record                  `pyprof record`: sample a process or a command, and write what it did
record_run              One invocation of `pyprof record`: signals, the command that is started, progress and messages
recording_options       Options of recordings: sampling, unwinding, and time (--delay, --every, --last, --trigger)
report                  `pyprof report`: what a recording holds, in any format, or as a table in the terminal
signal_thread           A thread that handles signals such as Ctrl-C
source_line_shares      Source lines in the terminal: the most expensive ones, or a function's, with its instructions
symbols                 `pyprof symbols`: write a Breakpad symbol file
terminal_output         Output of lines for people, and lines of the log of an agent or a server
terminal_summary        What a recording says in the terminal when it is done
terminal_tables         Tables in the terminal: the most expensive functions, their callers and callees with their
                        shares
top                     `pyprof top`: what a process does, live in the terminal, or as a table for scripts
top_screen              A screen on a terminal, which is always restored, and the lines of `pyprof top` that it shows
top_session             One invocation of `pyprof top`: recordings, event loop, screen or tables, signals, a command's
                        own output
top_snapshots           Snapshots of a running recording: its windows merged one after the other
top_view_state          The current view of `pyprof top` as an immutable value, and the keys that change it
top_window_costs        Costs in one window of functions, threads, modules and lines, and callers and callees of a row
window_writer           Closing a window of a recording: named, written, reported
"""
