"""`python -m raptor` is the `raptor` command."""

from raptor.cli import main

main()
