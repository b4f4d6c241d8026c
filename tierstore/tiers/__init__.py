"""Tiers: the places that hold blocks."""
