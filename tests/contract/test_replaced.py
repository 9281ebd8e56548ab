"""What other libraries replace is looked up when it is called; what they reach for privately is there."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelerate
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.test_utils.world import run_world
from accelerate.utils import ParallelismConfig, TorchDynamoPlugin


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(4)))


@pytest.mark.parametrize("module", ["accelerate.accelerator", "accelerate.data_loader", "accelerate"])
def test_a_replaced_prepare_data_loader(fresh_state: None, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    seen: dict[str, Any] = {}

    def theirs(dataloader: Any, device: Any = None, **kwargs: Any) -> Any:
        seen.update(kwargs, device=device)
        return dataloader

    monkeypatch.setattr(importlib.import_module(module), "prepare_data_loader", theirs, raising=False)
    given = loader()
    assert Accelerator().prepare(given) is given
    wanted = (
        inspect.signature(accelerate.data_loader.prepare_data_loader).parameters
        if module != ("accelerate.data_loader")
        else seen
    )
    assert set(seen) <= set(wanted)
    assert seen["num_processes"] == 1 and seen["put_on_device"] is True and seen["use_seedable_sampler"] is True


@pytest.mark.parametrize("module", ["accelerate.accelerator", "accelerate.utils.fsdp_utils"])
def test_a_replaced_fsdp2_prepare_model(module: str) -> None:
    def rank_main(rank: int, n: int) -> tuple[bool, bool]:
        calls: list[Any] = []
        place = importlib.import_module(module)
        own = place.fsdp2_prepare_model

        def theirs(accelerator: Any, model: nn.Module) -> nn.Module:
            calls.append(accelerator)
            return own(accelerator, model)  # type: ignore[no-any-return]

        place.fsdp2_prepare_model = theirs
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
        model = nn.Linear(4, 4)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.weight.full_tensor().clone()
        accelerator.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        return calls == [accelerator], bool((model.weight.full_tensor() != before).any())

    assert run_world(rank_main, 2, how="fork") == [(True, True)] * 2


def test_a_wrapped_fsdp2_preparation() -> None:
    """As fine-tuning libraries do: they change a model before it is divided, and call what was there."""

    def rank_main(rank: int, n: int) -> tuple[list[str], bool, torch.dtype]:
        own, seen = Accelerator._prepare_fsdp2, []

        def theirs(self: Accelerator, *args: Any) -> Any:
            seen.extend(type(arg).__name__ for arg in args)
            return own(self, *(arg.double() if isinstance(arg, nn.Module) else arg for arg in args))

        Accelerator._prepare_fsdp2 = theirs  # type: ignore[method-assign]
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
        model = nn.Linear(4, 4)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.weight.full_tensor().clone()
        accelerator.backward(model(torch.ones(1, 4, dtype=torch.float64)).sum())
        optimizer.step()
        return seen, bool((model.weight.full_tensor() != before).any()), model.weight.dtype

    assert run_world(rank_main, 2, how="fork") == [(["Linear", "SGD"], True, torch.float64)] * 2


def test_a_replaced_fp8_conversion(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate.accelerator as place
    from accelerate.utils import AORecipeKwargs

    seen: list[nn.Module] = []

    def theirs(model: nn.Module, **kwargs: Any) -> nn.Module:
        seen.append(model)
        return model

    monkeypatch.setattr(place, "convert_model_to_fp8_ao", theirs)
    model = nn.Linear(16, 16)
    Accelerator(mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs()]).prepare(model)
    assert seen == [model]


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("prepare_model", lambda a: a.prepare(nn.Linear(1, 1))),
        ("prepare_data_loader", lambda a: a.prepare(loader())),
        ("prepare_optimizer", lambda a: a.prepare(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))),
        ("no_sync", lambda a: a.no_sync(nn.Linear(1, 1))),
        ("clip_grad_norm_", lambda a: a.clip_grad_norm_([torch.ones(1, requires_grad=True)], 1.0)),
        ("get_state_dict", lambda a: a.get_state_dict(nn.Linear(1, 1))),
    ],
)
def test_a_replaced_method_is_the_one_that_is_called(
    fresh_state: None, monkeypatch: pytest.MonkeyPatch, method: str, calls: Any
) -> None:
    seen: list[Any] = []

    def theirs(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(first)
        return first

    accelerator = Accelerator()
    monkeypatch.setattr(Accelerator, method, theirs)
    result = calls(accelerator)
    assert len(seen) == 1 and (result is seen[0])


def test_a_subclass_prepares_by_its_own_methods(fresh_state: None) -> None:
    class Own(Accelerator):
        def prepare_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            self.own = "prepared"
            return super().prepare_model(model, *args, **kwargs)

    accelerator = Own()
    accelerator.prepare(nn.Linear(1, 1))
    assert accelerator.own == "prepared"


def test_properties_and_class_attributes_can_be_replaced(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceleratorState, "is_fsdp2", property(lambda self: "theirs"))
    monkeypatch.setattr(Accelerator, "distributed_type", property(lambda self: "theirs"))
    monkeypatch.setattr(TorchDynamoPlugin, "to_kwargs", lambda self: {"backend": "eager"})
    accelerator = Accelerator()
    assert accelerator.state.is_fsdp2 == accelerator.distributed_type == "theirs"
    for name in ("dp_dim_names", "non_dp_dim_names", "dp_shard_cp_dim_names", "dp_cp_dim_names", "total_size"):
        assert isinstance(inspect.getattr_static(ParallelismConfig, name), property)
        monkeypatch.setattr(ParallelismConfig, name, property(lambda self: "theirs"))
        assert getattr(ParallelismConfig(), name) == "theirs"


def test_the_states_are_shared_dictionaries(fresh_state: None) -> None:
    assert PartialState._shared_state == {} and AcceleratorState._shared_state == {}
    accelerator = Accelerator()
    for kind in (PartialState, AcceleratorState, GradientState):
        assert kind._shared_state != {}
        assert kind().__dict__ is kind._shared_state or vars(kind()) == dict(kind._shared_state)
    accelerator.state._reset_state()
    assert AcceleratorState._shared_state == {} and PartialState._shared_state != {}
    AcceleratorState._reset_state(reset_partial_state=True)
    assert PartialState._shared_state == {}


def test_the_text_that_others_search_is_there() -> None:
    import accelerate.utils.fsdp_utils as module

    text = Path(module.__file__).read_text()
    assert "def fsdp2_prepare_model" in text and "def _prepare_sd_options" in text
    assert "sd_options" in inspect.signature(module._get_model_state_dict).parameters
    assert "full_state_dict" in inspect.getsource(module._get_model_state_dict)
    assert inspect.getsource(module.fsdp2_prepare_model).startswith("def fsdp2_prepare_model")


def test_check_device_map_is_looked_up(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate.big_modeling as module

    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with pytest.raises(ValueError, match="1"):
        module.dispatch_model(model, {"0": "cpu"})
    monkeypatch.setattr(module, "check_device_map", lambda *args: None)
    module.dispatch_model(model, {"0": "cpu"})


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (ParallelismConfig, "__post_init__"),
        (FullyShardedDataParallelPlugin, "set_mixed_precision"),
        (PartialState, "_prepare_backend"),
    ],
)
def test_a_replaced_method_of_a_configuration_is_called(owner: type, method: str) -> None:
    def rank_main(rank: int, n: int) -> int:
        own, calls = getattr(owner, method), []

        def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(method)
            return own(self, *args, **kwargs)

        setattr(owner, method, theirs)
        Accelerator(
            mixed_precision="bf16",
            fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
            parallelism_config=ParallelismConfig(dp_shard_size=2),
        )
        return len(calls)

    assert all(run_world(rank_main, 2, how="fork"))


def test_replaced_hooks_are_those_that_a_dispatch_attaches(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watch(place: Any, name: str) -> None:
        own = getattr(place, name)

        def theirs(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return own(*args, **kwargs)

        monkeypatch.setattr(place, name, theirs)

    watch(accelerate.big_modeling, "attach_align_device_hook_on_blocks")
    watch(accelerate.hooks.AlignDevicesHook, "init_hook")
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    accelerate.dispatch_model(model, {"0": "cpu", "1": "cpu"}, force_hooks=True)
    assert seen[0] == "attach_align_device_hook_on_blocks" and "init_hook" in seen
