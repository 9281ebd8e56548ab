"""Compatibility path: ``accelerate`` itself."""

import sys

from accelerate.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
