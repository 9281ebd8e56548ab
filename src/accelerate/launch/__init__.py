"""Starting processes: a job is planned by the first launcher that accepts it, and run by that launcher."""

from __future__ import annotations
