"""Ruby (CRuby): recognised, its functions are not read.

interpreter  Whether Ruby runs in a process, and which version
"""
