"""SFrame sections.

index    SFrame header and function index, V1 to V3 normalised to the same columns when loaded
rules    What the data words of one SFrame row say, as a Rule
section  SFrame, V1 to V3, as a Source: the index is loaded once, a function's rows when a pc first needs them
"""
