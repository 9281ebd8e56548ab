"""Compatibility path: ``accelerate to-fsdp2``."""

import sys

from accelerate.cli.to_fsdp2 import main, to_fsdp2_command, to_fsdp2_command_parser

__all__ = ["main", "to_fsdp2_command", "to_fsdp2_command_parser"]

if __name__ == "__main__":
    sys.exit(main())
