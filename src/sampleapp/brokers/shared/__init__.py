"""Parts that all brokers share: condition, followings, stopping, and calls of observers."""
