"""Parts that all brokers share: condition, subscriptions, stopping, and calls of observers."""
