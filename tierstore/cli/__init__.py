"""The command line: one module for each command. Heavy imports load only when a command runs."""
