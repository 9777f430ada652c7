"""Every statement this package sends, by who sends it."""
