"""Coverage-guided fuzzing of every reader of foreign data (`make fuzz`); not a part of the test suite.

readers   What is fuzzed: one function of bytes for each reader, which must return or raise what the reader promises
seeds     What the fuzzer begins with: parts of real files of this machine, and of the tests' own
__main__  All readers under atheris, one after the other, and a table of what was run
"""
