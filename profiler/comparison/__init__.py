"""Comparison of two profiles: the costs of each function in both, and which changes are significant.

The input is two Profiles of the same program or of two builds of it. The result is a Comparison, which is a value.
Functions are matched by name and file, not by address.

compare            Makes a Comparison of two profiles
function_matching  Finds the functions that both profiles have in common
result             The Comparison: amounts before and after, of each function; both sides as one profile
significance       Tests which changes between two recordings are significant, by the costs in slices of time
"""
