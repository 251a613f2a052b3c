"""`python -m aplc` is the `aplc` command."""

from aplc.cli import main

main()
