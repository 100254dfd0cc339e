"""Recordings of programs whose possible stacks are known from their source, judged sample by sample.

    python -m tests.accuracy [--samples N]

The tests of this folder take 2,000 samples of each program. The command takes 100,000, which is too long for CI.
"""
