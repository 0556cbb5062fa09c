"""``python -m rmixer``."""

from rmixer.cli import main

main()
