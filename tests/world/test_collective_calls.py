"""Every public call that all ranks must make: its documentation says so, it is listed here, and it is so.

A call is collective if every rank sends the same things to its group, in the same order, and something at all.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accelerate import Accelerator
from accelerate.comm import operations, rng
from accelerate.state import PartialState
from accelerate.test_utils.world import run_world, watch_collectives
from source import OWN, none

Call = Callable[[Accelerator, int, Path], Any]
ONES = torch.ones(2, 3)


def enter(context: Any) -> None:
    with context:
        pass


def prepared(accelerator: Accelerator) -> nn.Module:
    return accelerator.prepare_model(nn.Linear(3, 1))


def window(accelerator: Accelerator, steps: int, backward: bool = True) -> None:
    accelerator.gradient_accumulation_steps = steps
    model = prepared(accelerator)
    with accelerator.accumulate(model):
        loss = model(ONES).sum()
        if backward:
            accelerator.backward(loss)


# What is documented as "Collective" without more.
ALWAYS: dict[str, Call] = {
    "Accelerator.gather": lambda a, rank, _: a.gather(ONES),
    "Accelerator.gather_for_metrics": lambda a, rank, _: a.gather_for_metrics(ONES),
    "Accelerator.reduce": lambda a, rank, _: a.reduce(ONES),
    "Accelerator.pad_across_processes": lambda a, rank, _: a.pad_across_processes(torch.ones(1 + rank)),
    "Accelerator.check_trigger": lambda a, rank, _: a.check_trigger(),
    "Accelerator.prepare": lambda a, rank, _: a.prepare(nn.Linear(3, 1)),
    "Accelerator.prepare_model": lambda a, rank, _: prepared(a),
    "Accelerator.main_process_first": lambda a, rank, _: enter(a.main_process_first()),
    "Accelerator.local_main_process_first": lambda a, rank, _: enter(a.local_main_process_first()),
    "Accelerator.wait_for_everyone": lambda a, rank, _: a.wait_for_everyone(),
    "Accelerator.save_model": lambda a, rank, folder: a.save_model(prepared(a), str(folder)),
    "Accelerator.should_stop": lambda a, rank, _: a.should_stop,
    "PartialState.wait_for_everyone": lambda a, rank, _: PartialState().wait_for_everyone(),
    "PartialState.main_process_first": lambda a, rank, _: enter(PartialState().main_process_first()),
    "PartialState.local_main_process_first": lambda a, rank, _: enter(PartialState().local_main_process_first()),
    "operations.barrier": lambda a, rank, _: operations.barrier(),
    "operations.any_rank": lambda a, rank, _: operations.any_rank(False),
    "operations.gather": lambda a, rank, _: operations.gather(ONES),
    "operations.reduce": lambda a, rank, _: operations.reduce(ONES),
    "operations.broadcast": lambda a, rank, _: operations.broadcast(ONES.clone()),
    "operations.gather_object": lambda a, rank, _: operations.gather_object([rank]),
    "operations.broadcast_object_list": lambda a, rank, _: operations.broadcast_object_list([rank]),
    "operations.pad_across_processes": lambda a, rank, _: operations.pad_across_processes(torch.ones(1 + rank)),
    "operations.copy_tensor_to_devices": lambda a, rank, _: operations.copy_tensor_to_devices(
        ONES if rank == 0 else None
    ),
    "rng.synchronize_rng_state": lambda a, rank, _: rng.synchronize_rng_state("torch"),
    "rng.synchronize_rng_states": lambda a, rank, _: rng.synchronize_rng_states(["torch"]),
}
# Documented as collective under a condition, which the call here meets.
SOMETIMES: dict[str, Call] = {
    "Accelerator.prepare_data_loader": lambda a, rank, _: list(
        a.prepare_data_loader(DataLoader(range(8), batch_size=2, shuffle=True))
    ),
    "Accelerator.backward": lambda a, rank, _: window(a, 1),
}
# Collective too, and tested where it takes a whole program, or goes through the job's store instead of a group.
ELSEWHERE = {
    "Accelerator.clip_grad_norm_",
    "Accelerator.end_training",
    "Accelerator.get_state_dict",
    "Accelerator.load_state",
    "Accelerator.resume",
    "Accelerator.save_state",
    "operations.GatheredParameters",
}
# What reads like one, and must not be: a rank may call it alone.
NEVER: dict[str, Call] = {
    "Accelerator.on_main_process": lambda a, rank, _: a.on_main_process(lambda: None)(),
    "Accelerator.print": lambda a, rank, _: a.print(end=""),
    "Accelerator.set_trigger": lambda a, rank, _: a.set_trigger(),
    "Accelerator.split_between_processes": lambda a, rank, _: enter(a.split_between_processes([1, 2])),
    "Accelerator.prepare_optimizer": lambda a, rank, _: a.prepare_optimizer(
        torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    ),
    "Accelerator.unwrap_model": lambda a, rank, _: a.unwrap_model(nn.Linear(1, 1)),
    "Accelerator.save": lambda a, rank, folder: a.save({"a": ONES}, str(folder / "saved")),
}
PLACES = {
    "accelerator": "Accelerator",
    "comm.operations": "operations",
    "comm.rng": "rng",
    "state.partial": "PartialState",
}


def documented() -> set[str]:
    """The public calls of these places whose docstring has "Collective" in its first sentences."""
    found = set()
    for module in OWN:
        place = next((name for home, name in PLACES.items() if module.within(home)), None)
        for node in module.nodes(ast.FunctionDef) if place else ():
            assert isinstance(node, ast.FunctionDef)
            method = any(node in owner.body for owner in ast.walk(module.tree) if isinstance(owner, ast.ClassDef))
            said = "Collective" in (ast.get_docstring(node) or "") and not node.name.startswith("_")
            if said and method is (place in ("Accelerator", "PartialState")):
                found.add(f"{place}.{node.name}")
    return found


def sent(call: Call, tmp_path: Path) -> list[list[str]]:
    """What each of two ranks sends during the call, beyond what coming up took."""
    with watch_collectives() as seen:

        def rank_main(rank: int, n: int) -> tuple[int, int]:
            accelerator = Accelerator(cpu=True)
            accelerator.wait_for_everyone()
            before = len(seen[rank])
            call(accelerator, rank, tmp_path)
            return before, len(seen[rank])

        spans = run_world(rank_main, 2, timeout=30)
    return [seen[rank][slice(*span)] for rank, span in enumerate(spans)]


def test_what_is_documented_is_listed() -> None:
    listed = {*ALWAYS, *SOMETIMES, *ELSEWHERE}
    none([f"{name} says that it is collective and is not listed here" for name in sorted(documented() - listed)])
    none([f"{name} is listed here and does not say that it is collective" for name in sorted(listed - documented())])


@pytest.mark.parametrize("name", [*ALWAYS, *SOMETIMES])
def test_every_rank_sends_the_same(name: str, tmp_path: Path) -> None:
    first, second = sent((ALWAYS | SOMETIMES)[name], tmp_path)
    assert first, "nothing was sent"
    assert first == second


@pytest.mark.parametrize("name", NEVER)
def test_a_rank_may_call_it_alone(name: str, tmp_path: Path) -> None:
    assert sent(NEVER[name], tmp_path) == [[], []]


def test_backward_inside_a_window_sends_nothing(tmp_path: Path) -> None:
    without = sent(lambda a, rank, _: window(a, 2, backward=False), tmp_path)
    assert sent(lambda a, rank, _: window(a, 2), tmp_path) == without
