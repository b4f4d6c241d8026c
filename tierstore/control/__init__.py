"""The mind: which block is where and what moves next. Pure: no I/O, no threads, no clock, no torch."""
