"""Server-sent events: one query of the database for all clients.

hub         polls the database and writes each event to the mailboxes
listening   LISTEN for progress, where that works
mailbox     the messages that wait for one client
streams     the response that sends them
"""
