"""The statements that this package sends, a module for each sender.

Decisions live in SQL: these are calls of pulse.* by named argument and reads of its
views. No table is named in Python; tests/python/worker/test_sql.py checks that, and
each statement against the server.
"""
