"""`python -m custard` is the command line."""

from custard.cli import main

main()
