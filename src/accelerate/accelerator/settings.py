"""What was configured, readable under the names that other libraries use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate import runtime

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade
    from accelerate.precision.base import Precision
    from accelerate.strategies.base import Strategy

__all__ = ["SettingsMixin"]


class SettingsMixin:
    """Properties over the state and the handlers."""

    ddp_handler: Any
    scaler_handler: Any
    autocast_handler: Any
    profile_handler: Any
    init_handler: Any
    ao_recipe_handler: Any
    te_recipe_handler: Any
    msamp_recipe_handler: Any
    fp8_recipe_handler: Any

    def _expose_handlers(self: Facade) -> None:
        """Handlers as plain attributes: other libraries assign them, and they are read when a model is prepared."""
        given = self.handlers
        own: Any = self
        own.ddp_handler = given.ddp
        own.scaler_handler = given.scaler
        own.autocast_handler = given.autocast
        own.profile_handler = given.profile
        own.init_handler = given.init
        own.ao_recipe_handler = given.ao
        own.te_recipe_handler = given.te
        own.msamp_recipe_handler = given.msamp
        own.fp8_recipe_handler = given.fp8 or given.ao or given.te or given.msamp

    def _precision_settings(self: Facade) -> dict[str, Any]:
        """What a Precision reads of the handlers."""
        given = self.handlers
        return {"scaler": given.scaler, "autocast": given.autocast, "fp8": self.fp8_recipe_handler}  # type: ignore[attr-defined]

    @property
    def strategy(self) -> Strategy[Any]:
        """The strategy in use."""
        strategy = runtime.current().strategy
        assert strategy is not None, "an Accelerator exists, so its strategy was set up"
        return strategy

    @property
    def precision(self) -> Precision:
        """The precision in use."""
        precision = runtime.current().precision
        assert precision is not None, "an Accelerator exists, so its precision was set up"
        return precision

    @property
    def scaler(self) -> Any:
        """The gradient scaler under fp16, else None."""
        return self.precision.scaler

    @scaler.setter
    def scaler(self, value: Any) -> None:
        if value is None and self.precision.scaler is None:
            return
        self.precision.scaler = value  # type: ignore[misc]

    @property
    def mixed_precision(self: Facade) -> str:
        """ "no", "fp16", "bf16" or "fp8"."""
        return str(self.state.mixed_precision)

    @property
    def native_amp(self) -> bool:
        """Whether forwards run under torch's autocast."""
        return self.__dict__.get("_native_amp", self.precision.mode != "no")  # type: ignore[no-any-return]

    @native_amp.setter
    def native_amp(self, value: bool) -> None:
        self.__dict__["_native_amp"] = value

    @property
    def split_batches(self: Facade) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return bool(self.dataloader_config.split_batches)

    @property
    def dispatch_batches(self: Facade) -> bool | None:
        """Whether rank 0 reads for all ranks; None: for iterable datasets only."""
        return self.dataloader_config.dispatch_batches  # type: ignore[no-any-return]

    @property
    def even_batches(self: Facade) -> bool:
        """Whether the last batch is filled up so that ranks get as many samples."""
        return bool(self.dataloader_config.even_batches)

    @even_batches.setter
    def even_batches(self: Facade, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self: Facade) -> bool:
        """Whether a shuffle's order depends on a seed and the epoch alone."""
        return bool(self.dataloader_config.use_seedable_sampler)

    @property
    def non_blocking(self: Facade) -> bool:
        """Whether copies to the device are asynchronous."""
        return bool(self.dataloader_config.non_blocking)

    @property
    def use_stateful_dataloader(self: Facade) -> bool:
        """Whether loaders become torchdata's StatefulDataLoader."""
        return bool(self.dataloader_config.use_stateful_dataloader)

    @property
    def fp8_enabled(self: Facade) -> bool:
        """Whether the precision is fp8."""
        return bool(self.state.mixed_precision == "fp8")

    @property
    def fp8_backend(self) -> str | None:
        """The fp8 back end in use ("AO", "TE", "MSAMP"), or None."""
        if self.precision.mode != "fp8":
            return None
        from accelerate.precision.fp8 import backend_name

        return backend_name(self.fp8_recipe_handler)
