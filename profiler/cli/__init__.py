"""The command line: one file for each subcommand.

agent             `pyprof agent`: record what rules choose, for as long as the machine runs, and keep it in a spool
agent_connection  The connection of a command to the running agent of a spool
agent_install     `pyprof agent install`: the systemd unit that runs the agent
agent_record      `pyprof agent record`: request a recording from a running agent
agent_resend      `pyprof agent resend`: send segments of the spool again, after a receiver has lost them
agent_status      `pyprof agent status`: health, contents of the spool, files without names, waiting segments
argument_types    Types of command-line values; a wrong value is one sentence with exit code 2
before_imports    Work before the imports of a command, because imports take long on a busy machine
comparison_table  A comparison as a table for the terminal
completion        `pyprof completion SHELL`: a completion script for the shell
crash_reason      The reason for a process's death in words: the signal, or the exception of Windows or macOS
demo_fleet        `pyprof demo-fleet`: a server, an agent and three services, to try the page with real data
diff              `pyprof diff`: two recordings side by side, function by function, as a table, a page or data
doctor            `pyprof doctor`: what will work here and on this process, before anything is attached
dump              `pyprof dump`: the stacks of all threads, of a live process or a core file
dump_interpreter  The result of `pyprof dump` as values, and the output of its interpreter frames
function_tables   The functions that tables in the terminal show
inspect           `pyprof inspect`: the unwind tables of a file
interrupts        A thread that handles signals such as Ctrl-C
ipython_magic     `%load_ext pyprof` and `%%pyprof` in IPython and Jupyter: what a cell does, as a page below it
live/             `pyprof top`: snapshots of a running recording, views of them, and the screen
main              The parser, and the one place that catches every named error
merge             `pyprof merge`: several recordings, or other profilers' files, as one
number_format     Numbers as people read them
option_groups     Options that several commands share: samples, processes, Python frames, a GDB stub
output_files      Output files: names are checked before recording, files are replaced atomically
post_mortem       Output of `pyprof dump` for a core file or a crash dump: threads, why the process died, registers
progress          Progress on standard error while recording
query             `pyprof query`: what the agent's spool says about a span of time
record            `pyprof record`: sample a process or a command, and write what it did
record_run        One invocation of `pyprof record`: signals, the command that is started, messages
reduced_numpy     numpy without rarely used parts, which take a third of its import time
report            `pyprof report`: what a recording holds, in any format, or as a table in the terminal
sampling_options  Options of sampling and unwinding
server            `pyprof server`: receive and store windows of agents, answer queries, and serve a page
short_names       Function names shortened to the width of the terminal, as readers of C++ and Rust expect
source_table      Source lines in the terminal, with their shares
symbols           `pyprof symbols`: write a Breakpad symbol file
terminal_output   Output of lines for people
terminal_summary  What a recording says in the terminal when it is done
timing_options    Options for the begin and the writing of `pyprof record`: --delay, --every, --last and --trigger
top               `pyprof top`: what a process does, live in the terminal, or as a table for scripts
top_table         Tables of functions in the terminal: the most expensive ones, and their callers and callees
window_writer     Closing a window of a recording: named, written, reported
"""
