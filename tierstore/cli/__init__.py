"""The command line: `tierstore bench | doctor`."""
