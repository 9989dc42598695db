"""Parsing and validation of requests that publish, and their conversion into records, without I/O."""
