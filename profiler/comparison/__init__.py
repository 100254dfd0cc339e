"""Two profiles side by side: what each function cost in both, and which changes are more than chance.

In: two Profiles, of the same program or of two builds of it. Out: a Comparison, a value. Functions are matched by name
and file, not by address.

compare       From two profiles and what they are scaled by to a Comparison
drift         By how much all functions changed together: another machine or load, not a change of some of them
matching      Which functions of both are the same one
result        What comes out: amounts before and after, of each function
scale         What costs are divided by, so that both can be compared
significance  Which changes are more than chance: a bootstrap over slices of time
slices        What each function cost in each slice of time
"""
