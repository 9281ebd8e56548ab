"""The rest of a session: unwrapping, uneven inputs, profiling, letting go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from accelerate import runtime
from accelerate.devices.memory import release_memory
from accelerate.errors import NotBuiltError
from accelerate.strategies.unwrap import extract_model_from_parallel

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade

__all__ = ["SessionMixin"]


class SessionMixin:
    """What is done around training rather than in a step."""

    _item_unit: float | None

    def unwrap_model(
        self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> torch.nn.Module:
        """The model inside its wrappers; the very same object where there is none.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Whether its forward goes on running in mixed precision.
            keep_torch_compile: Whether a compiled model comes back compiled.
        """
        return extract_model_from_parallel(model, keep_fp32_wrapper, keep_torch_compile)  # type: ignore[no-any-return]

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A loader over what ``dataloader`` gives after its first ``num_batches`` batches, this epoch only."""
        from accelerate.data.skip import skip_first_batches

        return skip_first_batches(dataloader, num_batches=num_batches)

    @contextmanager
    def join_uneven_inputs(self: Facade, joinables: list[Any], even_batches: bool | None = None) -> Iterator[None]:
        """A context in which ranks may run out of data at different times: those that did keep the others going.

        Args:
            joinables: The prepared models that train in it.
            even_batches: Overrides ``even_batches`` of the prepared map-style loaders inside the context.
        """
        models = [getattr(model, "_orig_mod", model) for model in joinables]
        able = [model for model in models if hasattr(model, "join_hook")]
        samplers: list[Any] = [getattr(loader, "batch_sampler", None) for loader in self._dataloaders]
        shown = [sampler for sampler in samplers if hasattr(sampler, "even_batches")]
        before = [sampler.even_batches for sampler in shown]
        if even_batches is not None:
            for sampler in shown:
                sampler.even_batches = even_batches
        from torch.distributed.algorithms.join import Join

        joined = Join(able, enable=True, throw_on_early_termination=False) if able else nullcontext()
        try:
            with joined:
                yield
        finally:
            for sampler, value in zip(shown, before, strict=True):
                sampler.even_batches = value

    @contextmanager
    def maybe_context_parallel(
        self: Facade,
        buffers: list[torch.Tensor] | None = None,
        buffer_seq_dims: list[int] | None = None,
        no_restore_buffers: set[torch.Tensor] | None = None,
    ) -> Iterator[None]:
        """A context in which ``buffers`` are split along their sequence dimension, where context parallelism is on."""
        config = self.state.parallelism_config
        if config is not None and config.cp_enabled:
            raise NotBuiltError(f"cp_size={config.cp_size} asks for context parallelism, which is not built yet.")
        yield

    @contextmanager
    def profile(self: Facade, profile_handler: Any = None) -> Iterator[Any]:
        """A torch profiler, as ``ProfileKwargs`` says; writes one trace a rank to its ``output_trace_dir``."""
        from accelerate.config.handlers import ProfileKwargs

        handler = profile_handler or self.handlers.profile or ProfileKwargs()
        profiler = handler.build()
        with profiler:
            yield profiler
        folder = handler.output_trace_dir
        if folder is not None:
            from pathlib import Path

            Path(folder).mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(Path(folder) / f"profile_{self.process_index}.json"))
            self.wait_for_everyone()

    def free_memory(self: Facade, *objects: Any) -> list[Any]:
        """Lets go of every prepared object and of ``objects``, and gives cached device memory back.

        Returns:
            A list of None, one for each of ``objects``: assign it to their names.
        """
        for wrapped in self._optimizers:
            wrapped._before_step = None
        for held in (self._schedulers, self._optimizers, self._models, self._dataloaders):
            held.clear()
        self._windows.clear()
        self._window = self._default_window  # type: ignore[attr-defined]
        self._item_unit = None
        self.deepspeed_engine_wrapped = None
        self.step = 0
        return release_memory(*objects)

    def clear(self, *objects: Any) -> list[Any]:
        """The same as :meth:`free_memory`."""
        return self.free_memory(*objects)  # type: ignore[misc]  # self is the whole façade

    def end_training(self: Facade) -> None:
        """Collective. Ends trackers and pending saves, and leaves the process group."""
        self._finish_saves()  # type: ignore[attr-defined]
        self._finish_trackers()  # type: ignore[attr-defined]
        held = runtime.find()
        if held is not None and held.strategy is not None:
            held.strategy.teardown()
        self.state.destroy_process_group()
