"""The process of the ``gnnx`` command, which is ``python -m gnnx`` as well."""

import sys

from gnnx import interrupts

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main() -> None:
    """Run the command line; requests to end are met before anything else is imported."""
    try:
        interrupts.meet()
        from gnnx.cli import app

        app()
    except KeyboardInterrupt:  # Typer itself meets those while a verb runs
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
