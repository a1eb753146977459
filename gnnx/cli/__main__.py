"""``python -m gnnx.cli`` is ``gnnx``."""

from gnnx.cli import main

main()
