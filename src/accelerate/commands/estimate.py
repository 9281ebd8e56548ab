"""Compatibility path: ``accelerate estimate-memory``."""

import sys

from accelerate.cli.estimate import (
    create_empty_model,
    estimate_command,
    estimate_command_parser,
    gather_data,
    main,
)

__all__ = ["create_empty_model", "estimate_command", "estimate_command_parser", "gather_data", "main"]

if __name__ == "__main__":
    sys.exit(main())
