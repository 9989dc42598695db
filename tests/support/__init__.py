"""What tests share: services, brokers, clusters and strategies to test with."""
