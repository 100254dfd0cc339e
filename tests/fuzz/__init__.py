"""Coverage-guided fuzzing of every reader of foreign data (`make fuzz`), separate from the test suite.

readers   The fuzzed readers: functions of bytes that return or raise what the reader documents seeds     The initial
inputs: parts of real files of this machine and inputs of the tests __main__  The command that runs all readers under
atheris in turn and prints a table of the runs
"""
