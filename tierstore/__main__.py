"""``python -m tierstore``: the command line by whichever interpreter is at hand."""

from tierstore.cli.main import main

main()
