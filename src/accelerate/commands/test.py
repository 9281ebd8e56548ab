"""Compatibility path: ``accelerate test``."""

import sys

from accelerate.cli.test import main
from accelerate.cli.test import self_test as test_command
from accelerate.cli.test import self_test_parser as test_command_parser

__all__ = ["main", "test_command", "test_command_parser"]

if __name__ == "__main__":
    sys.exit(main())
