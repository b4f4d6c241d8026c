"""Disks: the only room that makes os-level file calls."""
