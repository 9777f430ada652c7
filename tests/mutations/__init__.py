"""Mutations: pulse without one of its rules, to see that a test notices."""
