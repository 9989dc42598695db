"""Reading over HTTP: the readings and their changes, pages and streams of records, and the topics."""
