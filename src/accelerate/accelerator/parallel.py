"""Ranks along the axes of a device mesh, and what engines show of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import runtime
from accelerate.errors import StateError

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade

__all__ = ["ParallelMixin"]


class ParallelMixin:
    """Composed parallelism."""

    deepspeed_engine_wrapped: Any = None

    @property
    def parallelism_config(self: Facade) -> Any:
        """The degrees of parallelism, or None."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self: Facade) -> Any:
        """The DeviceMesh, or None for plain data parallelism."""
        return self.state.device_mesh

    @property
    def is_composable_parallelism_enabled(self: Facade) -> bool:
        """Whether the strategy composes with others over a mesh."""
        return bool(self.state.is_fsdp2)

    @property
    def is_fsdp2(self: Facade) -> bool:
        """Whether the strategy is FSDP version 2."""
        return bool(self.state.is_fsdp2)

    @property
    def deepspeed_plugin(self: Facade) -> Any:
        """The DeepSpeed plugin in use, or None."""
        return self.state.deepspeed_plugin

    @property
    def should_save_model(self: Facade) -> bool:
        """Whether this rank writes files of replicated state."""
        config = self.project_configuration
        return bool(self.state.is_local_main_process if config.save_on_each_node else self.state.is_main_process)

    def _axis_rank(self, *names: str) -> int:
        mesh = runtime.current().mesh
        present = [name for name in names if mesh is not None and name in (mesh.mesh_dim_names or ())]
        if not present:
            raise StateError(
                f"The rank along {' or '.join(names)} was asked for, but the job has no such axis. Pass "
                "Accelerator(parallelism_config=ParallelismConfig(…)) with that degree above 1."
            )
        return int(mesh.get_local_rank(present[0]))  # type: ignore[union-attr]

    @property
    def data_parallel_rank(self) -> int:
        """This process's place among the replicas."""
        return self._axis_rank("dp_replicate")

    @property
    def data_parallel_shard_rank(self) -> int:
        """This process's place among the shards."""
        return self._axis_rank("dp_shard")

    @property
    def tensor_parallel_rank(self) -> int:
        """This process's place in its tensor-parallel group."""
        return self._axis_rank("tp")

    @property
    def context_parallel_rank(self) -> int:
        """This process's place in its context-parallel group."""
        return self._axis_rank("cp")

    @property
    def pipeline_parallel_rank(self) -> int:
        """This process's place in the pipeline."""
        return self._axis_rank("pp")
