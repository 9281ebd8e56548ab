"""The parts that both versions of fully sharded training are put together from, in one process."""

from __future__ import annotations

import functools
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, wrap

from accelerate import FullyShardedDataParallelPlugin
from accelerate.errors import ConfigError, PrepareError
from accelerate.strategies.fsdp2 import by_hand
from accelerate.strategies.fsdp2.shard import offload_policy, root_precision, root_reshard
from accelerate.strategies.sharded import clipping
from accelerate.strategies.sharded.activation import checkpoint_units, is_checkpointed
from accelerate.strategies.sharded.agreement import digest
from accelerate.strategies.sharded.ignored import find_ignored, ignored_parameters, scalars
from accelerate.strategies.sharded.layout import rows_of
from accelerate.strategies.sharded.masters import even_out, raise_masters
from accelerate.strategies.sharded.state import keep_one, shared_names
from accelerate.strategies.sharded.successors import Successors, take_state
from accelerate.strategies.sharded.units import choose_units, members, outermost, part_frozen, policy_for


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


blocks = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block})


def names(model: nn.Module, units: Any) -> list[str]:
    found = {module: name for name, module in model.named_modules()}
    return [found[unit] for unit in units]


# Units


def test_no_policy_makes_no_units() -> None:
    assert choose_units(Model(), None) == []


@pytest.mark.parametrize(
    "policy", [blocks, wrap.ModuleWrapPolicy({Block}), wrap.CustomPolicy(lambda m: isinstance(m, Block))]
)
def test_units_by_function_or_policy_object(policy: Any) -> None:
    model = Model()
    assert names(model, choose_units(model, policy)) == ["blocks.0", "blocks.1"]


def test_units_by_size_count_what_is_left() -> None:
    model = Model()
    policy = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=20)
    # Each linear layer is a unit (20 elements), so the blocks around them have nothing left.
    assert names(model, choose_units(model, policy)) == [
        "embed", "blocks.0.inner", "blocks.0.outer", "blocks.1.inner", "blocks.1.outer", "head",
    ]  # fmt: skip
    policy = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=30)
    assert names(model, choose_units(model, policy)) == ["blocks.0", "blocks.1"]


def test_a_container_without_a_forward_is_no_unit() -> None:
    model = Model()

    def everything(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return True

    assert "blocks" not in names(model, choose_units(model, everything))


def test_children_come_before_parents() -> None:
    model = Model()
    policy = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block, nn.Linear})
    assert names(model, choose_units(model, policy))[:3] == ["blocks.0.inner", "blocks.0.outer", "blocks.0"]


def test_modules_that_share_a_parameter_go_to_the_unit_around_both(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    model.head.weight = model.embed.weight
    policy = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=20)
    units = names(model, choose_units(model, policy))
    assert "embed" not in units
    assert "head" not in units
    assert "blocks.0.inner" in units
    assert "share parameters" in caplog.text


def test_blocks_that_share_a_layer_are_no_units() -> None:
    model = Model()
    model.blocks[1].inner = model.blocks[0].inner
    assert choose_units(model, blocks) == []


def test_a_block_used_twice_is_one_unit() -> None:
    model = Model()
    model.blocks[1] = model.blocks[0]
    assert len(choose_units(model, blocks)) == 1


def test_a_unit_of_nothing_but_ignored_parameters_is_none() -> None:
    model = Model()
    ignored = ignored_parameters([model.blocks[0]])
    assert names(model, choose_units(model, blocks, ignored)) == ["blocks.1"]


def test_a_wrapper_around_a_unit_is_the_unit() -> None:
    model = Model()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    units = choose_units(model, blocks)
    assert units == [model.blocks[0], model.blocks[1]]
    assert outermost(model, model.embed) is model.embed


def test_members_hold_every_parameter_once() -> None:
    model = Model()
    held = members(model, choose_units(model, blocks))
    assert [len(parameters) for parameters in held] == [4, 4, 2]
    assert {p for parameters in held for p in parameters} == set(model.parameters())


def test_adapters_are_parted_from_frozen_weights() -> None:
    model = Model()
    model.blocks[0].inner.requires_grad_(False)
    units = choose_units(model, blocks)
    assert names(model, part_frozen(model, units)) == ["blocks.0.outer", "blocks.0", "blocks.1"]


def test_the_plugin_keeps_the_word_for_the_next_model() -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, transformer_cls_names_to_wrap=["Block"])
    model = Model()
    assert names(model, choose_units(model, policy_for(plugin, model))) == ["blocks.0", "blocks.1"]
    other = nn.Sequential(Block(), nn.Linear(4, 4))
    assert names(other, choose_units(other, policy_for(plugin, other))) == ["0"]


# What is left out


def test_ignored_by_pattern_of_whole_names() -> None:
    model = Model()
    assert names(model, find_ignored(model, r"blocks\.\d")) == ["blocks.0", "blocks.1"]
    assert names(model, find_ignored(model, r".*inner")) == ["blocks.0.inner", "blocks.1.inner"]
    assert find_ignored(model, None) == []


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [("inner", PrepareError, "matches no module of Model"), ("(", ConfigError, "is no regular expression"),
     (".*", PrepareError, "matches the whole model")],
)  # fmt: skip
def test_ignored_patterns_that_cannot_be_meant(asked: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        find_ignored(Model(), asked)


def test_ignored_modules_of_another_model_do_not_count() -> None:
    model, other = Model(), Model()
    assert find_ignored(model, [model.head, other.head]) == [model.head]


def test_scalars_have_no_dimension_to_divide() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor(1.0)), "b": nn.Parameter(torch.ones(1))})
    assert scalars(model) == {model["a"]}


# Masters


def test_trained_16_bit_parameters_are_raised_in_place() -> None:
    model = Model().bfloat16()
    model.embed.requires_grad_(False)
    before = list(model.parameters())
    raised = raise_masters(model)
    assert [id(p) for p in model.parameters()] == [id(p) for p in before]
    assert "embed.weight" not in raised
    assert model.embed.weight.dtype == torch.bfloat16
    assert model.head.weight.dtype == torch.float32
    assert raise_masters(model) == []


def test_packed_parameters_are_never_cast() -> None:
    class Packed(nn.Parameter):
        """Four bits an element, kept as 16-bit numbers."""

    model = nn.Module()
    model.weight = Packed(torch.ones(2, dtype=torch.bfloat16))
    assert raise_masters(model) == []
    assert model.weight.dtype == torch.bfloat16


def test_a_unit_has_one_dtype() -> None:
    a, b = nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), nn.Parameter(torch.ones(2))
    c = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    assert even_out([[a, b], [c]]) == 1
    assert (a.dtype, c.dtype) == (torch.float32, torch.bfloat16)


# Successors


def test_an_optimizer_follows_to_the_new_parameters() -> None:
    model, successors = Model(), Successors()
    optimizer = torch.optim.SGD(
        [{"params": [model.embed.weight], "lr": 0.5}, {"params": model.head.parameters()}], lr=0.1, momentum=0.9
    )
    optimizer.state[model.embed.weight] = {"momentum_buffer": torch.ones(6, 4)}
    before = successors.watch(model)
    model.embed.weight = nn.Parameter(torch.zeros(6, 4))
    successors.record(before, dict(model.named_parameters()))
    assert successors.rebind(optimizer, lambda old, new, state: state) == 1
    assert optimizer.param_groups[0]["params"][0] is model.embed.weight
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[1]["params"][0] is model.head.weight
    assert optimizer.state[model.embed.weight]["momentum_buffer"].sum() == 24
    assert len(optimizer.state) == 1


def test_what_was_replaced_is_not_kept_alive() -> None:
    model, successors = Model(), Successors()
    first, before = model.embed.weight, successors.watch(model)
    model.embed.weight = nn.Parameter(torch.zeros(6, 4))
    successors.record(before, dict(model.named_parameters()))
    assert successors.find(first) is model.embed.weight
    assert successors.find(model.embed.weight) is None
    del first, before
    gc.collect()
    assert len(successors._new) == 0


def test_state_is_taken_out_by_name() -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
    optimizer.step()
    ((taken, state),) = take_state([optimizer], [model])
    assert taken is optimizer
    assert len(optimizer.state) == 0
    assert state.state["head.weight"]["exp_avg"].shape == (6, 4)
    assert take_state([optimizer], [model]) == []


# Clipping, layout, digests


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_clipping_whole_gradients_equals_torch(norm_type: float, max_norm: float) -> None:
    def grown() -> Model:
        torch.manual_seed(0)
        model = Model()
        model(torch.arange(4).view(1, 4)).square().sum().backward()
        return model

    ours, theirs = grown(), grown()
    norm = clipping.clip(ours.parameters(), max_norm, norm_type)
    wanted = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    assert torch.allclose(norm, wanted)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad)


def test_clipping_without_gradients_and_measuring_only() -> None:
    model = Model()
    assert clipping.clip(model.parameters(), 1.0, 2.0) == 0
    model.head.weight.grad = torch.full((6, 4), 10.0)
    norm = clipping.clip(model.head.weight, float("inf"), 2.0)
    assert norm == pytest.approx((24 * 100) ** 0.5)
    assert torch.equal(model.head.weight.grad, torch.full((6, 4), 10.0))


def test_16_bit_gradients_are_added_up_in_float32() -> None:
    weight = nn.Parameter(torch.zeros(4096, dtype=torch.float16))
    weight.grad = torch.full((4096,), 32.0, dtype=torch.float16)
    # In float16 the sum of squares, 4 million, would be infinite.
    assert float(clipping.clip([weight], float("inf"), 2.0)) == pytest.approx(2048.0)


def test_rows_as_torch_cuts_them() -> None:
    for length in range(9):
        for size in range(1, 6):
            chunks = torch.arange(length).chunk(size) if length else ()
            wanted = [(int(c[0]), len(c)) for c in chunks]
            found = [rows_of(length, size, index) for index in range(size)]
            assert [part for part in found if part[1]] == wanted
            assert sum(count for _, count in found) == length


def test_digests_tell_tensors_apart() -> None:
    big = torch.zeros(10, 1000)
    assert digest(big) == digest(big.clone())
    assert digest(big) != digest(big.view(1000, 10)), "the shape counts"
    assert digest(big) != digest(big + 1)
    assert digest(torch.empty(2, device="meta")) == 0
    assert digest(torch.ones(3, dtype=torch.bool)) != 0
    assert digest(torch.empty(0)) != 0
    assert digest(torch.full((2,), float("nan"))) == digest(torch.full((2,), float("nan")))


def test_one_name_of_a_shared_tensor_is_kept() -> None:
    assert keep_one([["a", "b"], ["c"]]) == {"b": "a"}
    assert keep_one([["a", "b"]], ["^a$"]) == {"a": "b"}
    model = Model()
    model.head.weight = model.embed.weight
    assert shared_names(model) == {"head.weight": "embed.weight"}


# Activation checkpointing and torch's objects


def test_checkpoints_are_put_around_units_and_names_stay() -> None:
    model = Model()
    before = sorted(model.state_dict())
    checkpoint_units(model, choose_units(model, blocks))
    assert is_checkpointed(model.blocks[0])
    assert sorted(model.state_dict()) == before
    checkpoint_units(model, choose_units(model, blocks))
    assert not is_checkpointed(model.blocks[0]._checkpoint_wrapped_module), "not twice"


def test_nothing_to_checkpoint_is_said(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint_units(Block(), [])
    assert "has no units to checkpoint" in caplog.text


def test_memory_is_pinned_only_where_there_is_an_accelerator() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert offload_policy(CPUOffloadPolicy(), cpu) == CPUOffloadPolicy(pin_memory=False)
    assert offload_policy(CPUOffloadPolicy(), cuda) == CPUOffloadPolicy(pin_memory=True)
    assert offload_policy(CPUOffloadPolicy(pin_memory=False), cuda) == CPUOffloadPolicy(pin_memory=False)
    assert type(offload_policy(OffloadPolicy(), cuda)) is OffloadPolicy
    assert type(offload_policy(None, cuda)) is OffloadPolicy


def test_the_outermost_unit() -> None:
    low = torch.bfloat16
    assert root_reshard(True) is None
    assert root_reshard(False) is False
    assert root_reshard(2) is None
    assert root_precision(MixedPrecisionPolicy(low, low, low)).output_dtype is None
    assert root_precision(MixedPrecisionPolicy(low, low, torch.float32)).output_dtype == torch.float32


# The pieces that other libraries call


def test_names_without_any_wrapper() -> None:
    named = {"_orig_mod.a._checkpoint_wrapped_module.weight": 1, "b._fsdp_wrapped_module.bias": 2}
    assert by_hand.fsdp2_canonicalize_names(named) == {"a.weight": 1, "b.bias": 2}


def test_switching_an_optimizers_parameters_by_any_key() -> None:
    olds = [nn.Parameter(torch.ones(n)) for n in (1, 2, 3)]
    news = [nn.Parameter(torch.zeros(n)) for n in (1, 2, 3)]
    optimizer = torch.optim.SGD(olds, lr=0.1)
    optimizer.state[olds[2]] = {"momentum_buffer": 1}
    mapping = {olds[0]: news[0], id(olds[1]): news[1], olds[2].data_ptr(): news[2]}
    by_hand.fsdp2_switch_optimizer_parameters(optimizer, mapping)
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], news, strict=True))
    assert dict(optimizer.state) == {news[2]: {"momentum_buffer": 1}}
    with pytest.raises(PrepareError, match=r"no successor of a parameter of shape \(1,\)"):
        by_hand.fsdp2_switch_optimizer_parameters(optimizer, {})


def test_a_wrap_policy_as_a_function_of_a_module() -> None:
    model = Model()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, transformer_cls_names_to_wrap=["Block"])
    policy = by_hand.fsdp2_prepare_auto_wrap_policy(plugin, model)
    assert policy is not None
    assert policy(model.blocks[0])
    assert not policy(model.head)
    none = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="NO_WRAP")
    assert by_hand.fsdp2_prepare_auto_wrap_policy(none, model) is None


def test_parameters_of_modules_that_are_left_out() -> None:
    model = Model()
    assert by_hand.get_parameters_from_modules("head", model, "cpu") == {model.head.weight}
    assert by_hand.get_parameters_from_modules([model.head], model, "cpu") == {model.head.weight}
    assert by_hand.get_parameters_from_modules(None, model, "cpu") == set()


def test_shared_weights_stay_shared_where_modules_are_made_one_by_one() -> None:
    with torch.device("meta"):
        model = Model()
    model.head.weight = model.embed.weight

    def make(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)

    init = by_hand.ensure_weights_retied(make, model, torch.device("cpu"))
    for module in model.modules():
        init(module)
    assert model.head.weight is model.embed.weight
    assert not any(p.is_meta for p in model.parameters())


def test_loading_on_one_rank_is_told_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "unset")
    by_hand.enable_fsdp_ram_efficient_loading()
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
    by_hand.disable_fsdp_ram_efficient_loading()
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"


def test_the_compatibility_path_gives_the_same_objects() -> None:
    from accelerate.utils import fsdp_utils

    assert fsdp_utils.fsdp2_prepare_model is by_hand.fsdp2_prepare_model
    text = Path(fsdp_utils.__file__).read_text()
    assert "def fsdp2_prepare_model" in text
    assert "def _prepare_sd_options" in text
