"""Devices: where an engine keeps the pages that the store copies from and to."""
