"""Programs that run in step with the samples, and what each collector says of them.

A program alternates between two functions, each for half of a period that is a simple multiple of the sampling period.
A collector whose sampling times have a period of their own sees only one of the functions. The program counts the
processor time of each function itself, so the truth is known on a busy machine, too.
"""
