"""Groups of workers over HTTP: pull, acknowledge and extend."""
