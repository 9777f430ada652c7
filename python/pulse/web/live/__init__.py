"""Server-sent events: one look at the database for all who follow it."""
