"""Benchmarks: ratios to other tools, or to the machine's own noise, in one run. See bench/README.md."""
