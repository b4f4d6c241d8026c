"""Measures what the store reaches on this machine, each link beside the machine's own limit in the same run.

Called by the command line. It uses the store as any caller does and judges it with code of its own:
the limits never run through the product. Importing the package alone costs nothing.
"""
