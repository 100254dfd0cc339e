"""The command line; one file a subcommand.

live/             A recording, watched while it runs: snapshots, views, the screen
agent             `pyprof agent`: record what rules choose, for as long as the machine runs, and keep it in a spool
agent_install     `pyprof agent install`: the systemd unit that runs it
agent_record      `pyprof agent record`: ask the agent that runs for a recording
agent_status      `pyprof agent status`: what the spool has, which files lack names, what waits for sinks
arguments         Types of command-line values; a wrong one is one sentence with exit code 2
change_table      A comparison as a table for the terminal
completion        `pyprof completion SHELL`: a completion script for the shell, made by shtab from the parser itself
crash             Why a process died, in words: the signal, or the exception of Windows or macOS
crash_codes       Names of the numbers that say why a process died
criteria          Options that choose samples of a profile; the same wherever a file is read
demo_fleet        `pyprof demo-fleet`: a server, an agent and three services, to look at the page with real data
diff              `pyprof diff`: two recordings side by side, function by function, as a table, a page or data
doctor            `pyprof doctor`: what will work here and on this process, before anything is attached
dump              `pyprof dump`: the stacks of all threads, now, or as a core file has them
dump_interpreter  How `pyprof dump` shows what an interpreter runs in a thread
dump_subject      What was dumped, as values
inspect           `pyprof inspect`: one window into all unwind tables of a file
flight            When `pyprof record` begins, and when it writes: --delay, --every, --last and --trigger
function_tables   The functions that tables in the terminal show, for native programs and for those with an interpreter
interrupts        Signals such as Ctrl-C are taken by a thread of their own
main              The parser and the one place that catches every named error
merge             `pyprof merge`: several recordings, or other profilers' files, as one
notebook          `%load_ext pyprof` and `%%pyprof` in IPython and Jupyter: what a cell does, as a page below it
numpy_parts       numpy without the parts that pyprof hardly uses, which take a third of the time of its import
outcome           What a recording says in the terminal when it is done
output            Where a profile is written: the file's name, checked before anything is recorded, replaced in one step
post_mortem       What `pyprof dump` shows of a core file or a crash dump: threads, why the process died, registers
progress          What is shown on standard error while recording
python_options    The options of what is shown of Python
query             `pyprof query`: what the agent's spool says about a span of time
record            `pyprof record`: sample a process or a command, and write what it did
remote            The options of a target behind a GDB stub
report            `pyprof report`: what a recording holds, in any format, or as a table in the terminal
sampling_options  The options of how a recording is made: what is sampled, and how stacks are unwound
running           One invocation of `pyprof record`: signals, the command that is started, what is said
selection         Options that choose processes and threads
server            `pyprof server`: takes windows of agents, keeps them, answers questions and shows a page
short_names       Names of functions in the room that a terminal has, shortened as readers of C++ and Rust do
source_table      Source lines in the terminal, with their shares
startup           What a command does before it loads anything else, because loading takes long on a busy machine
symbols           `pyprof symbols`: write a Breakpad symbol file
terminal          Lines for people
top               `pyprof top`: what a process does, live in the terminal, or as a table for scripts
top_table         Tables of functions in the terminal: the dearest ones, and who calls or is called
window            Closing a window of a recording: named, written, reported
words             Numbers as people read them
"""
