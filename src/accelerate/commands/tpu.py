"""Compatibility path: ``accelerate tpu-config``."""

import sys

from accelerate.cli.tpu import main, tpu_command_launcher, tpu_command_parser

__all__ = ["main", "tpu_command_launcher", "tpu_command_parser"]

if __name__ == "__main__":
    sys.exit(main())
