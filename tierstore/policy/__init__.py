"""Policies: who goes when room is short, and who may enter a tier."""
