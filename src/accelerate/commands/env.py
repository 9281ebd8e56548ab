"""Compatibility path: ``accelerate env``."""

import sys

from accelerate.cli.env import env_command, env_command_parser, main

__all__ = ["env_command", "env_command_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
