"""`python -m headroles`: the command line."""

from headroles.cli import main

main()
