"""Benchmarks of pyprof. Results are ratios to other profilers, or to the machine's own noise, in the same run. See
bench/README.md.
"""
