"""Who asks, and what stands before every request."""
