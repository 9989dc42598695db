"""Records as clients read them: positions, lines of JSON, parameters of a query, and event streams."""
