"""pyprof: a sampling profiler for live Linux processes."""

__version__ = "0.1.0"
