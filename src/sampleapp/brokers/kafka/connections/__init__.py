"""Making a connection to a broker ready for use: TLS, API versions, SASL, and a sentence for each failure."""
