"""Ruby (CRuby): detected only, its functions are not read.

interpreter  Detection of Ruby and its version in a process
"""
