"""The command line: one module a command, each light to import; what is heavy loads when a command runs."""
