"""Compatibility path: ``accelerate estimate-memory``."""

import sys

from accelerate.cli.estimate import estimate_command, estimate_command_parser, main

__all__ = ["estimate_command", "estimate_command_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
