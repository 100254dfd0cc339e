"""Readers of unwind formats; each ends in the rules of pyprof.unwind.rules, nobody downstream sees a format."""
