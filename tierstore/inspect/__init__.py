"""Offline tools for a store's folder: list, verify, repair and export it.

Called by the command line, on a closed folder or beside its live owner. All except repair only read: no lock, no
write, no new file. The only package that uses Zarr itself.
"""
