"""A connection to a broker, until it is ready for use: TLS, versions, SASL, and what may be wrong with it."""
