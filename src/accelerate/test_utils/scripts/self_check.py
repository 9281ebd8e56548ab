"""The self-check that ``accelerate test`` launches: one line a part, and an error where a part does not hold.

Runs on any number of processes. Every part compares with a value worked out another way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed

__all__ = ["main"]

ITEMS, FEATURES, BATCH = 48, 6, 4


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: found {found}, expected {wanted}")


def _close(what: str, found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    apart = (found.detach().float().cpu() - wanted.detach().float().cpu()).abs().max().item()
    if not apart <= tolerance:
        raise AssertionError(f"{what}: values are {apart:.3g} apart, at most {tolerance:.3g} was expected")


def _processes(accelerator: Accelerator) -> str:
    """Every rank is there once, and turns are taken in order."""
    world = accelerator.num_processes
    ranks = gather_object([accelerator.process_index])
    _expect("ranks", sorted(ranks), list(range(world)))
    sent = broadcast_object_list([f"from rank {accelerator.process_index}"])
    _expect("what rank 0 broadcast", sent[0], "from rank 0")
    with accelerator.split_between_processes(list(range(2 * world + 1))) as part:
        parts = gather_object(list(part))
    _expect("parts of a list", sorted(parts), list(range(2 * world + 1)))
    accelerator.wait_for_everyone()
    return f"{world} process{'es' * (world > 1)} on {accelerator.device.type}, {accelerator.distributed_type.value}"


def _collectives(accelerator: Accelerator) -> str:
    """Gather, reduce and pad give what arithmetic says."""
    rank, world = accelerator.process_index, accelerator.num_processes
    own = torch.full((2,), float(rank), device=accelerator.device)
    wanted = torch.arange(world, dtype=torch.float32).repeat_interleave(2)
    _close("gather", accelerator.gather(own), wanted, 0.0)
    _close("sum", accelerator.reduce(own, "sum"), torch.full((2,), world * (world - 1) / 2), 0.0)
    uneven = torch.ones(rank + 1, device=accelerator.device)
    padded = accelerator.pad_across_processes(uneven)
    _expect("padded length", padded.shape[0], world)
    _expect("ones in the padded tensor", int(padded.sum().item()), rank + 1)
    return "gather, reduce and pad agree with arithmetic"


def _data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ITEMS, FEATURES, generator=generator)
    return TensorDataset(torch.arange(ITEMS), features, features.sum(dim=1, keepdim=True))


def _loading(accelerator: Accelerator) -> str:
    """A shuffled loader gives every item once over all ranks, also where the last batches are uneven."""
    seen = 0
    for shuffle in (False, True):
        loader = accelerator.prepare(
            DataLoader(TensorDataset(torch.arange(ITEMS + 1)), batch_size=BATCH, shuffle=shuffle)
        )
        for _ in range(2):
            found = torch.cat([accelerator.gather_for_metrics(batch[0]) for batch in loader])
            _expect("items of an epoch", sorted(found.tolist()), list(range(ITEMS + 1)))
            seen += len(found)
    return f"{seen} items seen, each once an epoch"


def _losses_alone(steps: int, world: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same training as :func:`_training` by plain PyTorch, on batches as large as all ranks' together."""
    torch.manual_seed(1)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _, features, targets = _data().tensors
    losses = []
    for step in range(steps):
        rows = torch.arange(step * BATCH * world, (step + 1) * BATCH * world) % ITEMS
        optimizer.zero_grad()
        loss = F.mse_loss(model(features[rows]), targets[rows])
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _training(accelerator: Accelerator) -> str:
    """Losses and weights equal those of one process on the same global batches."""
    world = accelerator.num_processes
    steps = max(1, ITEMS // (BATCH * world))
    wanted, weights = _losses_alone(steps, world)
    torch.manual_seed(1)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(_data(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, (_, features, targets) in zip(range(steps), loader, strict=False):
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(features).float(), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    exact = accelerator.mixed_precision == "no" and accelerator.gradient_accumulation_steps == 1
    if exact:
        _close("losses", torch.tensor(losses), torch.tensor(wanted), 1e-5)
        found = accelerator.get_state_dict(model)
        if accelerator.is_main_process:
            for name, tensor in weights.items():
                _close(f"weight {name}", found[name], tensor, 1e-5)
    elif not losses[-1] < losses[0]:
        raise AssertionError(f"the loss did not fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    return f"{steps} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}" + (", as in one process" if exact else "")


def _saving(accelerator: Accelerator) -> str:
    """A saved state comes back."""
    with tempfile.TemporaryDirectory() as own:
        folder = broadcast_object_list([own])[0]
        torch.manual_seed(2)
        model = torch.nn.Linear(FEATURES, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        before = {name: tensor.detach().clone() for name, tensor in accelerator.get_state_dict(model).items()}
        accelerator.save_state(f"{folder}/state")
        accelerator.backward(model(torch.ones(2, FEATURES, device=accelerator.device)).float().sum())
        optimizer.step()
        accelerator.load_state(f"{folder}/state")
        for name, tensor in accelerator.get_state_dict(model).items():
            _close(f"weight {name} after loading", tensor, before[name], 0.0)
        accelerator.wait_for_everyone()
    return "weights and optimizer come back"


PARTS: tuple[Callable[[Accelerator], str], ...] = (_processes, _collectives, _loading, _training, _saving)


def main() -> None:
    """Runs every part on every rank."""
    accelerator = Accelerator()
    set_seed(42)
    for part in PARTS:
        said = part(accelerator)
        accelerator.print(f"{part.__name__.strip('_'):12} {said}")
        accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
