"""Measures the store's bandwidth on this machine, each link beside the machine's own limit in the same run.

Called by the command line. It uses the store as any caller does, but measures the limits with code of its own, which
never runs through the store. Importing the package alone costs nothing.
"""
