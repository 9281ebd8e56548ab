"""Compatibility path: ``accelerate launch``."""

import sys

from accelerate.cli.launch import launch_command, launch_command_parser, main

__all__ = ["launch_command", "launch_command_parser", "main"]

if __name__ == "__main__":
    sys.exit(main())
