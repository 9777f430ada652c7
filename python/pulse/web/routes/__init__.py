"""The HTTP API, a module for each part of the queue.

Each module has a router, which app.py adds to the app. A route reads or acts in one
transaction in the user's role (access/caller.py) with statements of pulse.sql and
web/queries.py.
"""
