"""Where a project's files go."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProjectConfiguration"]


@dataclass
class ProjectConfiguration:
    """Folders and the naming of checkpoints.

    ``logging_dir`` is ``project_dir`` unless said otherwise. With ``automatic_checkpoint_naming`` a checkpoint goes to
    ``project_dir/checkpoints/checkpoint_<iteration>``, and of those the newest ``total_limit`` are kept.
    ``save_on_each_node``: the main process of every machine writes, for folders that machines do not share.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | None = None) -> None:
        """Sets the project folder, and the logging folder where none was chosen."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir
