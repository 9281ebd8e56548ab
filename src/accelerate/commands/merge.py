"""Compatibility path: ``accelerate merge-weights``."""

import sys

from accelerate.cli.merge import main, merge_command, merge_command_parser

__all__ = ["main", "merge_command", "merge_command_parser"]

if __name__ == "__main__":
    sys.exit(main())
