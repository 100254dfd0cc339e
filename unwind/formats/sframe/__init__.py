"""SFrame sections.

index    SFrame header and function index, with V1 to V3 converted to the same columns
rules    A decoder of the data words of one SFrame row to a Rule
section  An SFrame section, V1 to V3, as an unwind source
"""
