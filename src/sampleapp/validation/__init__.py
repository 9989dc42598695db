"""
Checks of contents by the schemas of their topics: at once, or in a process of its own.

Nothing is imported here, since the process must not import Twisted.
"""
