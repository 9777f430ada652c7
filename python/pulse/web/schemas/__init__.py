"""What clients send and get, as the OpenAPI document describes it."""
