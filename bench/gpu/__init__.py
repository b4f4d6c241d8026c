"""Judges the GPU path on a real GPU: right bytes, right order, and how fast beside a plain pinned copy.

Run as ``python -m bench.gpu --seconds 120``, from a checkout with ``PYTHONPATH=.`` and torch, cupy and numpy alone.
"""
