"""Bandwidth of every link, beside the machine's own limit."""
