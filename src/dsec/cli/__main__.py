"""``python -m dsec.cli``."""

from dsec.cli.main import main

main()
