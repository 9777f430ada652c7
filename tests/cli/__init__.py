"""The command line, the embedded server, the package as people install it."""
