"""The service as a whole: its options, its assembly, its listeners, and how twistd starts and stops it."""
