"""The interface described: every operation, the OpenAPI document made of them, and the pages at ``/docs``."""
