"""Benchmarks of the engine; README.md says how to run and read them."""
