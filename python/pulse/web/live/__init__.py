"""Server-sent events: one query of the database for all clients."""
