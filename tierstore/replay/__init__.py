"""Replay: the store's own planner over a recorded trace, with a clock of its own and links that are a model.

A door beside the others: `tierstore replay` calls it. What is decided is decided by `tierstore.control`; here
time passes, jobs end, and the outcome is counted. No bytes move.
"""
