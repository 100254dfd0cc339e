"""Accuracy tests with programs whose possible stacks are known from their source. Each sampled stack is judged.

    python -m tests.accuracy [--samples N]

The tests of this folder take 2,000 samples of each program. The command takes 100,000, which is too long for CI.
"""
