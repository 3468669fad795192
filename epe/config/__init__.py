"""From what users write (stage file, flags, request fields, environment) to frozen structs.

Strict: what is unknown, doubled, unused or not there yet is an error that names its place.
"""
