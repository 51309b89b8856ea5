"""`python -m headroles`: the command line."""

from headroles.cli.main import main

main()
