"""Functions that other libraries put in place of those that the façade calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.replaced import replacement

if TYPE_CHECKING:
    import torch

    from accelerate.accelerator.typing import Facade

__all__ = ["replaced_loader", "replaced_model"]


def replaced_loader(facade: Facade, loader: Any, place: bool, slice_fn: Any) -> Any:
    """The loader as somebody else's ``prepare_data_loader`` makes it; None where nobody replaced ours."""
    from accelerate.data.prepare import prepare_data_loader

    theirs = replacement(
        "prepare_data_loader", prepare_data_loader, "accelerate.accelerator", "accelerate.data_loader", "accelerate"
    )
    if theirs is None:
        return None
    part, config = facade.strategy.shard_spec(), facade.dataloader_config
    return theirs(
        loader,
        facade.device,
        num_processes=part.count,
        process_index=part.index,
        split_batches=config.split_batches,
        put_on_device=place,
        rng_types=list(facade.rng_types),
        dispatch_batches=config.dispatch_batches,
        even_batches=config.even_batches,
        slice_fn_for_dispatch=slice_fn,
        use_seedable_sampler=config.use_seedable_sampler,
        data_seed=config.data_seed,
        non_blocking=config.non_blocking,
        use_stateful_dataloader=config.use_stateful_dataloader,
        torch_device_mesh=None,
    )


def replaced_model(facade: Facade, model: torch.nn.Module) -> torch.nn.Module | None:
    """The model as somebody else's function divides it, where the strategy has a public one; else None."""
    public = facade.strategy.public_prepare()
    if public is None:
        return None
    name, own = public
    theirs = replacement(name, own, "accelerate.accelerator", "accelerate.utils.fsdp_utils", "accelerate.utils")
    return None if theirs is None else theirs(facade, model)
