"""The command line. A command's module is imported when the command is called."""

from __future__ import annotations
