"""Publishing over HTTP: one message or many, any body, CloudEvents, hooks, and REST Proxy's envelope."""
