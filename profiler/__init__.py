"""pyprof: a sampling profiler for live Linux processes.

cli/           The command line; one file a subcommand
model/         The values that travel through pyprof: samples in, walks, stacks, profiles out
objfile/       Object files: which file is behind a mapping, and what is in it
runtime_code/  Code that processes make at run time: who registered it, and what that says of rules and names
session/       The loop that ties collector, unwinder, stacks, names and exporters together
symbolize/     Names for addresses
tools/         What `inspect`, `symbols` and `doctor` are made of
diagnostics    Counters for what was tolerated, and problems of modules
errors         Named conditions
options        Options of a recording, as values
"""

__version__ = "0.1.0"
