"""LMCache's backends for host memory and local disk, in one process without a GPU."""
