"""Authentication, and the checks before every request."""
