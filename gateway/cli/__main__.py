"""`python -m gateway.cli`: the command without its installed script."""

from gateway.cli import main

main(prog_name="watermaster")
