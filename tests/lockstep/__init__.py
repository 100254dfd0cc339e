"""Accuracy of the collectors on programs that run in step with the samples.

A program alternates between two functions, each for half of a period that is a simple multiple of the sampling period.
A collector with periodic sampling times sees only one of the functions. The program measures the processor time of each
function itself, so that the truth is known on a busy machine, too.
"""
