"""What ``Accelerator(...)`` takes, and how it refuses what it does not take."""

from __future__ import annotations

import pytest
import torch

from accelerate import Accelerator
from accelerate.errors import ConfigError, MisplacedArgumentError, PrepareError, StateError
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    TorchDynamoPlugin,
    patch_environment,
)


@pytest.mark.parametrize(
    ("keyword", "place"),
    [
        ("even_batches", "DataLoaderConfiguration"),
        ("dispatch_batches", "DataLoaderConfiguration"),
        ("use_seedable_sampler", "DataLoaderConfiguration"),
        ("logging_dir", "ProjectConfiguration"),
        ("fp16", "mixed_precision='fp16'"),
        ("find_unused_parameters", "DistributedDataParallelKwargs"),
        ("timeout", "InitProcessGroupKwargs"),
        ("mixed_precison", "Did you mean 'mixed_precision'"),
        ("gradient_acumulation_steps", "Did you mean 'gradient_accumulation_steps'"),
    ],
)
def test_a_keyword_in_the_wrong_place_is_a_type_error_that_names_the_right_one(keyword: str, place: str) -> None:
    with pytest.raises(TypeError, match=keyword) as caught:
        Accelerator(**{keyword: True})
    assert isinstance(caught.value, MisplacedArgumentError)
    assert place in str(caught.value)


def test_split_batches_may_be_said_in_either_place_but_not_twice_differently(fresh_state: None) -> None:
    assert Accelerator(split_batches=True).split_batches
    with pytest.raises(ConfigError, match="split_batches"):
        Accelerator(split_batches=True, dataloader_config=DataLoaderConfiguration(split_batches=False))


def test_two_handlers_of_a_kind(fresh_state: None) -> None:
    with pytest.raises(ConfigError, match="two DistributedDataParallelKwargs"):
        Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(), DistributedDataParallelKwargs(bucket_cap_mb=3)])


def test_something_that_is_no_handler(fresh_state: None) -> None:
    with pytest.raises(ConfigError, match="'timeout=3'"):
        Accelerator(kwargs_handlers=["timeout=3"])  # type: ignore[list-item]


def test_accumulation_said_twice(fresh_state: None) -> None:
    with pytest.raises(ConfigError, match="num_steps=2"):
        Accelerator(gradient_accumulation_steps=4, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2))
    assert Accelerator(gradient_accumulation_steps=4).gradient_accumulation_steps == 4


def test_the_launch_is_heard(fresh_state: None) -> None:
    with patch_environment(accelerate_mixed_precision="bf16", accelerate_gradient_accumulation_steps="3"):
        accelerator = Accelerator()
    assert (accelerator.mixed_precision, accelerator.gradient_accumulation_steps) == ("bf16", 3)


def test_an_unknown_precision(fresh_state: None) -> None:
    with pytest.raises(ValueError, match="bf61"):
        Accelerator(mixed_precision="bf61")


def test_a_second_accelerator_shares_the_state_or_names_what_differs(fresh_state: None) -> None:
    first = Accelerator(mixed_precision="bf16")
    assert Accelerator().state is not first.state
    assert Accelerator().mixed_precision == "bf16"
    with pytest.raises(StateError, match="mixed_precision='fp16'.*'bf16'") as caught:
        Accelerator(mixed_precision="fp16")
    assert isinstance(caught.value, ValueError)


def test_project_dir_is_said_once(fresh_state: None) -> None:
    accelerator = Accelerator(project_dir="here")
    assert accelerator.project_dir == "here"
    with pytest.raises(ConfigError, match="'there'"):
        Accelerator(project_dir="here", project_config=ProjectConfiguration(project_dir="there"))


def test_compiling_is_asked_for_once(fresh_state: None) -> None:
    with pytest.raises(ConfigError, match="dynamo_backend"):
        Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="eager"), dynamo_backend="inductor")
    accelerator = Accelerator(dynamo_backend="eager")
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    assert type(model).__name__ == "OptimizedModule"
    assert type(accelerator.unwrap_model(model, keep_torch_compile=False)).__name__ == "Linear"
    assert accelerator.unwrap_model(model) is model


def test_a_reset_forgets_everything_it_published(fresh_state: None) -> None:
    from accelerate.state import AcceleratorState, PartialState

    Accelerator(mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)
    assert PartialState._shared_state == {}
    assert AcceleratorState._shared_state == {}
    assert Accelerator().mixed_precision == "no"


@pytest.mark.parametrize("steps", [0, -1, 1.5, "4", None])
def test_a_window_that_has_no_length(fresh_state: None, steps: object) -> None:
    message = rf"gradient_accumulation_steps={steps!r}: .*whole number of 1 or more"
    with pytest.raises(ConfigError, match=message):
        Accelerator(gradient_accumulation_steps=steps)
    accelerator = Accelerator()
    with pytest.raises(ConfigError, match=message):
        accelerator.gradient_accumulation_steps = steps
    assert accelerator.gradient_accumulation_steps == 1
    if steps is not None:
        with pytest.raises(ConfigError, match=message):
            GradientAccumulationPlugin(num_steps=steps)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dataloader_config", "DataLoaderConfiguration"),
        ("gradient_accumulation_plugin", "GradientAccumulationPlugin"),
        ("project_config", "ProjectConfiguration"),
    ],
)
def test_a_dictionary_where_an_object_belongs(fresh_state: None, name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.* is a dict.*{name}={kind}"):
        Accelerator(**{name: {"split_batches": True}})


def test_one_handler_outside_a_list(fresh_state: None) -> None:
    with pytest.raises(ConfigError, match=r"kwargs_handlers=\[…\]"):
        Accelerator(kwargs_handlers=DistributedDataParallelKwargs())


@pytest.mark.parametrize("given", ["torch", ["nosuch"], 3])
def test_generators_that_are_not_known(fresh_state: None, given: object) -> None:
    with pytest.raises(ConfigError, match=r"rng_types=.*generator, cuda.*torch"):
        Accelerator(rng_types=given)
    assert Accelerator(rng_types=["torch"]).rng_types == ["torch"]


@pytest.mark.parametrize("call", ["prepare_model", "prepare_optimizer", "prepare_data_loader", "prepare_scheduler"])
def test_a_call_for_one_kind_refuses_another(fresh_state: None, call: str) -> None:
    with pytest.raises(PrepareError, match=rf"{call}\(\) got a list"):
        getattr(Accelerator(), call)([1, 2])


def test_a_loss_that_is_no_tensor(fresh_state: None) -> None:
    with pytest.raises(TypeError, match=r"backward\(\) got a dict.*outputs\.loss"):
        Accelerator().backward({"loss": torch.ones(())})
    with pytest.raises(TypeError, match=r"accumulate\(\) got a int"), Accelerator().accumulate(4):
        pass
