"""Offline tools: what lies in a store's folder, whether it is whole, how it is mended, and how it gets out.

Called by the command line, on a closed folder or beside its live owner. All but the mending reads only: no lock,
no write, no new file. The only room that knows Zarr itself.
"""
