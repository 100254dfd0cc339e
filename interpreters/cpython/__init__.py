"""CPython 3.8 to 3.15: its runtime, threads, frames and code objects, read from outside."""
