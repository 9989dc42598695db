"""
Routes: declared on a Klein application, served by Klein or by a table.

Klein's own look-up goes through werkzeug and costs more than the rest of a small request. It serves the
routes inside any site of twisted.web. The service's own connections use `RouteTable`: paths without variables
are found by one look-up in a dict, and paths with variables by werkzeug's rules, whose results are cached.

A route whose path has the variable ``topic`` declares for which use a caller needs the topic. Its handler is
only ever called with an `AuthorizedTopic`.
"""

from sampleapp.web.routing.app import AccessPolicy, App, RouteTable, Variant

__all__ = ["AccessPolicy", "App", "RouteTable", "Variant"]
