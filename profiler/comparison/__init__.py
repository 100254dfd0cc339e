"""Comparison of two profiles: the costs of each function in both, and which changes are significant.

The input is two Profiles of the same program or of two builds of it. The result is a Comparison, a value. Functions are
matched by name and file, not by address.

combined_profile   Both sides of a comparison as one profile
compare            Makes a Comparison of two profiles
function_matching  Finds the functions that both profiles have in common
result             The Comparison: amounts before and after, of each function
significance       Tests which changes are significant: a bootstrap over slices of time
time_slices        Costs of each function in each slice of time
"""
