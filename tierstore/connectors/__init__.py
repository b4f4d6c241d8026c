"""Doors for inference engines: one folder for each, which knows that engine and is known to nothing else."""
