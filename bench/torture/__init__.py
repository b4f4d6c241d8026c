"""Lives of a store that end badly, one after another over one folder, and what each must find of those before it.

Run as ``python -m bench.torture``; tests/crash runs the same lives. From the outside in: `__main__` the command,
`lives` how a life is run and ended, `plans` what is drawn for it, `load` what it does, `witness` the disk that counts,
ends and remembers, `damage` what befalls the folder, `knowledge` what must be there, `blocks` who owns which bytes.
"""
