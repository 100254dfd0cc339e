"""Queries over the database, and their responses as JSON or profiles.

profile_queries   SQL queries for profiles, rates, time lines, labels and builds of services
query_api         The responses of the query interface: values for JSON, and profiles in every format
rows_to_profile   Conversion of rows of the database to a Profile, with the cost of each stack over time
sample_selection  The selection of samples in a query's parameters
time_line         The lines of a time line: the amount and the rate of each value of a label in each time step
"""
