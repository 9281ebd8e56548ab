"""Plans: who goes where, with memory that is only a number."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.offload.budget import get_balanced_memory, get_max_memory
from accelerate.offload.device_map import check_device_map, clean_device_map, infer_auto_device_map
from accelerate.offload.empty import init_empty_weights
from accelerate.offload.sizes import compute_module_sizes
from accelerate.offload.tied import device_of_name
from unit.offload.models import Language, language, net


def used(model: nn.Module, device_map: Any) -> dict[Any, int]:
    """Bytes on each device, shared tensors once a device."""
    held: dict[Any, dict[int, int]] = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        held.setdefault(device_of_name(name, device_map), {})[id(tensor)] = tensor.nbytes
    return {place: sum(tensors.values()) for place, tensors in held.items()}


def test_all_on_one_device_is_one_entry() -> None:
    assert infer_auto_device_map(language(), {0: 8000, "cpu": 100}) == {"": 0}


def test_devices_are_filled_in_order() -> None:
    device_map = infer_auto_device_map(language(), {0: 5000, 1: 5000}, ["Block"])
    assert device_map == {
        "shift": 0,
        "scale": 0,
        "embed": 0,
        "blocks.0": 0,
        "blocks.1": 1,
        "blocks.2": 1,
        "blocks.3": 1,
        "head": 0,
    }
    assert list(device_map) == ["shift", "scale", "embed", *(f"blocks.{i}" for i in range(4)), "head"]
    assert used(language(), device_map) == {0: 40 + 40 + 4000 + 800, 1: 2400}


def test_blocks_are_split_unless_they_must_not_be() -> None:
    limits: dict[int | str, int | str] = {0: 4600, 1: 10000}
    assert infer_auto_device_map(language(), limits)["blocks.0.up"] == 0
    assert infer_auto_device_map(language(), limits)["blocks.0.down"] == 1
    assert infer_auto_device_map(language(), limits, "Block")["blocks"] == 1


def test_nothing_exceeds_its_limit_and_nothing_is_left_out() -> None:
    with init_empty_weights(include_buffers=True):
        model = Language()
    for first in range(0, 9000, 600):
        for second in (0, 900, 3000):
            limits: dict[int | str, int | str] = {0: first, 1: second, "cpu": 2000}
            device_map = infer_auto_device_map(model, dict(limits), ["Block"], offload_buffers=True)
            check_device_map(model, device_map)
            held = used(model, device_map)
            assert all(held.get(place, 0) <= limit for place, limit in limits.items()), (limits, device_map)


def test_offloading_leaves_room_for_the_largest_offloaded_layer() -> None:
    limits: dict[int | str, int | str] = {0: 6000, "cpu": 10000}
    device_map = infer_auto_device_map(language(), limits, ["Block"])
    held = used(language(), device_map)
    assert held == {0: 4080 + 800, "cpu": 2400}
    assert 6000 - held[0] >= 800
    # With a second device that takes the rest, nothing passes through, so nothing is kept free.
    assert used(language(), infer_auto_device_map(language(), {0: 6000, 1: 1600}, ["Block"])) == {0: 5680, 1: 1600}


def test_buffers_of_offloaded_layers_stay_on_the_device() -> None:
    limits: dict[int | str, int | str] = {0: 64 + 100 + 39, "cpu": 1000}
    assert infer_auto_device_map(net(), limits) == {"": "cpu"}  # 64 + the largest later layer + 40 are 204
    assert infer_auto_device_map(net(), limits, offload_buffers=True) == {"first": 0, "norm": "cpu", "last": "cpu"}


def test_disk_takes_what_is_left() -> None:
    assert infer_auto_device_map(net(), {"cpu": 64 + 100 + 40}) == {"first": "cpu", "norm": "disk", "last": "disk"}
    assert infer_auto_device_map(net(), {"cpu": 10}) == {"": "disk"}


def test_limited_disk_may_be_too_small() -> None:
    with pytest.raises(ValueError, match="no room for 'last'"):
        infer_auto_device_map(net(), {"cpu": 64, "disk": 100})


def test_tied_weights_go_to_one_device_or_are_counted_twice(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(
        nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False), nn.Sequential(nn.Linear(10, 10))
    )
    model[2][0].weight = model[0].weight
    assert infer_auto_device_map(model, {0: 440, 1: 1000}) == {"0": 0, "1": 1, "2": 0}
    with caplog.at_level(logging.WARNING):
        assert infer_auto_device_map(model, {0: 439, 1: 1000}) == {"0": 0, "1": 1, "2": 1}
    assert "'2.0' is tied to a parameter on device 0" in caplog.text
    with caplog.at_level(logging.WARNING):
        assert infer_auto_device_map(model, {0: 439, 1: 839, 2: 1000})["2"] == 2  # 400 + 40 do not fit beside 400


def test_device_too_small_for_any_block_stays_empty_or_takes_a_later_part() -> None:
    limits: dict[int | str, int | str] = {0: 1000, 1: 10000}
    plain = infer_auto_device_map(language(), limits, ["Block"])
    assert used(language(), plain) == {0: 80, 1: 7200}
    model = nn.Sequential(nn.Linear(100, 10), nn.Linear(10, 10), nn.Linear(10, 1))
    assert infer_auto_device_map(model, {0: 500, 1: 10000}) == {"": 1}
    assert infer_auto_device_map(model, {0: 500, 1: 10000}, fallback_allocation=True) == {"1": 0, "0": 1, "2": 1}


def test_fallback_looks_inside_blocks() -> None:
    model = nn.Sequential(nn.Linear(100, 10), nn.Sequential(nn.Linear(50, 10), nn.Linear(2, 2)))
    device_map = infer_auto_device_map(model, {0: 100, 1: 100000}, fallback_allocation=True)
    assert device_map == {"1.1": 0, "0": 1, "1.0": 1}


def test_dtype_is_what_will_be_loaded() -> None:
    assert infer_auto_device_map(net(), {0: 130, "cpu": 1000}, dtype="float16") == {"": 0}
    assert set(infer_auto_device_map(net(), {0: 130, "cpu": 1000}).values()) != {0}


def test_result_may_stay_in_parts() -> None:
    assert infer_auto_device_map(net(), {0: 1000}, clean_result=False) == {"first": 0, "norm": 0, "last": 0}


def test_verbose_prints_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    infer_auto_device_map(net(), {0: 150, 1: 1000}, verbose=True)
    printed = capsys.readouterr().out
    assert "first goes to 0 (64 bytes; 64 in use)." in printed and "last does not fit: on to device 1." in printed
    infer_auto_device_map(net(), {0: 150, 1: 1000})
    assert capsys.readouterr().out == ""


def test_plan_that_cannot_run_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        infer_auto_device_map(language(), {0: 1000, "cpu": 10000})
    assert "device 0, which does not have the memory for the largest" in caplog.text


def test_model_without_parts() -> None:
    assert infer_auto_device_map(nn.Linear(2, 2), {0: 10, "cpu": 100}) == {"": "cpu"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a.x": 0, "a.y": 0, "b": 1}, {"a": 0, "b": 1}),
        ({"a": 0, "b": 0}, {"": 0}),
        ({"a.x": 0, "a.y": 1, "ab": 1}, {"a.x": 0, "a.y": 1, "ab": 1}),
        ({"a.x.1": 0, "a.x.2": 0, "a.y": 0, "ab": 1}, {"a": 0, "ab": 1}),
        ({"": 1}, {"": 1}),
    ],
)
def test_clean_device_map(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert clean_device_map(before) is before
    assert before == after and list(before) == list(after)


def test_clean_below_one_module() -> None:
    assert clean_device_map({"a.x": 0, "a.y": 0, "b.x": 0, "b.y": 0}, "a") == {"a": 0, "b.x": 0, "b.y": 0}


def test_check_names_what_is_missing_and_what_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"first\.weight, first\.bias, norm\.weight"):
        check_device_map(net(), {"last": 0})
    with caplog.at_level(logging.WARNING):
        check_device_map(net(), {"first": 0, "norm": 0, "last": 0, "lsat": 1})
    assert "lsat" in caplog.text
    check_device_map(language(), {"": "cpu"})


def test_max_memory_is_ordered_and_in_bytes() -> None:
    limits = get_max_memory({"disk": "1GB", "cpu": "1KiB", 1: 5, 0: "2KB"})
    assert list(limits.items()) == [(0, 2000), (1, 5), ("cpu", 1024), ("disk", 10**9)]
    with pytest.raises(ValueError, match="the device 'gpu'"):
        get_max_memory({"gpu": 1})
    with pytest.raises(ValueError, match="'lots' is not a size"):
        get_max_memory({0: "lots"})


def test_max_memory_given_as_text_is_numbers_afterwards() -> None:
    given: dict[int | str, int | str] = {0: "1KB", "cpu": 5}
    get_max_memory(given)
    assert given == {0: 1000, "cpu": 5}


def test_max_memory_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    import psutil

    limits = get_max_memory()
    assert list(limits) == ["cpu"]
    assert abs(limits["cpu"] - psutil.virtual_memory().available) < 2**30


@pytest.mark.parametrize("no_split", [["Block"], "Block"])
def test_balanced_memory_shares_out(no_split: Any) -> None:
    limits = get_balanced_memory(language(), {0: 10000, 1: 10000}, no_split)
    assert limits == {0: 7280 // 2 + 1000, 1: 10000}
    held = used(language(), infer_auto_device_map(language(), limits, no_split))
    assert max(held.values()) <= 0.67 * 7280 and set(held) == {0, 1}


def test_balanced_memory_keeps_limits_and_other_devices() -> None:
    limits = get_balanced_memory(language(), {0: 10000, 1: 100, 2: 10000, "cpu": 7}, ["Block"])
    assert limits == {0: 7280 // 3 + 1000, 1: 100, 2: 10000, "cpu": 7}
    assert get_balanced_memory(language(), {0: 10000, "cpu": 7}) == {0: 10000, "cpu": 7}
    assert get_balanced_memory(language(), {"cpu": 7}) == {"cpu": 7}
    assert get_balanced_memory(language(), {0: 0, 1: 9000})[1] == 9000


def test_balanced_memory_can_spare_the_first_device() -> None:
    assert get_balanced_memory(language(), {0: 10000, 1: 10000}, low_zero=True) == {0: 0, 1: 10000}
    limits = get_balanced_memory(language(), {0: 10000, 1: 5000}, ["Block"], low_zero=True)
    assert limits == {0: 2280, 1: 5000}
    three = get_balanced_memory(language(), {0: 10000, 1: 10000, 2: 10000}, ["Block"], low_zero=True)
    assert three == {0: 0, 1: 7280 // 2 + 1000, 2: 10000}


def test_balanced_memory_by_dtype() -> None:
    assert get_balanced_memory(language(), {0: 9000, 1: 9000}, ["Block"], dtype=torch.float16)[0] == 3640 // 2 + 500


def test_planning_a_large_model_is_quick() -> None:
    import time

    with init_empty_weights(include_buffers=True):
        model = nn.Sequential(*(nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))) for _ in range(120)))
    whole = compute_module_sizes(model)[""]
    start = time.process_time()
    infer_auto_device_map(model, {0: whole // 3, 1: whole // 3, "cpu": whole})
    assert time.process_time() - start < 2
