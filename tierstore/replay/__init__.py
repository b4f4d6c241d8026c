"""Replay: runs the store's own planner over a recorded trace, with a simulated clock and modelled links.

Called by `tierstore replay`. `tierstore.control` makes all decisions; this package advances time, ends jobs and counts
the outcome. No bytes move.
"""
