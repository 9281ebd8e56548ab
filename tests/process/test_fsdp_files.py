"""What saves and loads one sharded model or optimizer, and what brings shards together."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from accelerate.checkpoint import dcp
from accelerate.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, PickleRefusedError
from accelerate.test_utils.world import RanksFailedError, run_world
from accelerate.utils import (
    load_fsdp_model,
    load_fsdp_optimizer,
    merge_fsdp_weights,
    save_fsdp_model,
    save_fsdp_optimizer,
)
from memory import growth
from sharded_jobs import Job, accelerator, fresh, plain, plugin, prepare_together, train

KINDS = {1: ["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"], 2: ["FULL_STATE_DICT", "SHARDED_STATE_DICT"]}
CASES = [(version, kind) for version, kinds in KINDS.items() for kind in kinds]
FILES = {
    "FULL_STATE_DICT": ["optimizer.bin", "optimizer_1.bin", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin"],
    "SHARDED_STATE_DICT": ["optimizer_0", "optimizer_1", "pytorch_model_fsdp_0", "pytorch_model_fsdp_1"],
    "LOCAL_STATE_DICT": [
        "optimizer_0",
        "optimizer_1",
        "pytorch_model_fsdp_1_rank0.bin",
        "pytorch_model_fsdp_1_rank1.bin",
        "pytorch_model_fsdp_rank0.bin",
        "pytorch_model_fsdp_rank1.bin",
    ],
}
STEPS = 4


def begun(job: Job, fsdp_plugin: Any, seed: int | None = None) -> Any:
    acc = accelerator(job, fsdp_plugin)
    model = copy.deepcopy(job.model) if seed is None else fresh(seed, tied=True)
    return acc, *prepare_together(acc, job, model)


def halves(job: Job) -> tuple[Job, Job]:
    batches = job.batches()
    first, second = copy.copy(job), copy.copy(job)
    first.batches = lambda: batches[:STEPS]  # type: ignore[method-assign]
    second.batches = lambda: batches[STEPS:]  # type: ignore[method-assign]
    return first, second


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_what_was_saved_goes_on(version: int, kind: str, tmp_path: Path) -> None:
    job = Job(fresh(tied=True), steps=2 * STEPS)
    first, second = halves(job)

    def rank_main(rank: int, n: int) -> list[float]:
        fsdp_plugin = plugin(version, state_dict_type=kind)
        acc, model, optimizer = begun(job, fsdp_plugin)
        train(acc, first, model, optimizer)
        for index in (0, 1):
            save_fsdp_model(fsdp_plugin, acc, model, str(tmp_path), index)
            save_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path), index)
        acc.state._reset_state()
        acc, model, optimizer = begun(job, fsdp_plugin, seed=9)
        load_fsdp_model(fsdp_plugin, acc, model, str(tmp_path), 1)
        load_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path), 1)
        return train(acc, second, model, optimizer).losses

    results = run_world(rank_main, 2, how="fork")
    assert results[0] == pytest.approx(plain(job).losses[STEPS:], rel=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES[kind]


def test_a_file_of_one_version_loads_in_the_other_at_other_ranks(tmp_path: Path) -> None:
    job = Job(fresh(tied=True), steps=2 * STEPS)
    first, second = halves(job)

    def write(rank: int, n: int) -> None:
        for version, kind in ((1, "SHARDED_STATE_DICT"), (2, "FULL_STATE_DICT")):
            fsdp_plugin = plugin(version, state_dict_type=kind)
            acc, model, optimizer = begun(job, fsdp_plugin)
            train(acc, first, model, optimizer)
            save_fsdp_model(fsdp_plugin, acc, model, str(tmp_path / str(version)))
            save_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path / str(version)))
            acc.state._reset_state()

    def read(rank: int, n: int) -> list[list[float]]:
        found = []
        for version in (1, 2):
            fsdp_plugin = plugin(version)
            acc, model, optimizer = begun(job, fsdp_plugin, seed=9)
            folder = str(tmp_path / str(3 - version))
            load_fsdp_model(fsdp_plugin, acc, model, folder)
            load_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, folder)
            found.append(train(acc, second, model, optimizer).losses)
            acc.state._reset_state()
        return found

    run_world(write, 2, how="fork")
    wanted = plain(job).losses[STEPS:]
    for losses in run_world(read, 3, how="fork")[0]:
        # Three ranks share a batch of eight unevenly: their mean of means is near, not equal.
        assert losses == pytest.approx(wanted, rel=5e-2)
    for losses in run_world(read, 4, how="fork")[0]:
        assert losses == pytest.approx(wanted, rel=1e-6)


def test_local_state_needs_the_same_number_of_ranks(tmp_path: Path) -> None:
    job = Job(fresh(), steps=1)
    settings = {"state_dict_type": "LOCAL_STATE_DICT"}

    def write(rank: int, n: int) -> None:
        fsdp_plugin = plugin(1, **settings)
        acc, model, _ = begun(job, fsdp_plugin)
        save_fsdp_model(fsdp_plugin, acc, model, str(tmp_path))

    def read(rank: int, n: int) -> None:
        fsdp_plugin = plugin(1, **settings)
        acc, model, _ = begun(job, fsdp_plugin)
        load_fsdp_model(fsdp_plugin, acc, model, str(tmp_path))

    run_world(write, 2, how="fork")
    with pytest.raises(RanksFailedError, match="local state of 2 ranks, and this job has 1"):
        run_world(read, 1, how="fork")


@pytest.mark.parametrize("version", [1, 2])
def test_a_misfit_is_an_error_and_changes_nothing(version: int, tmp_path: Path) -> None:
    job = Job(fresh(), steps=1)

    def rank_main(rank: int, n: int) -> tuple[str, bool, str]:
        fsdp_plugin = plugin(version, state_dict_type="SHARDED_STATE_DICT")
        acc, model, optimizer = begun(job, fsdp_plugin)
        train(acc, job, model, optimizer)
        save_fsdp_model(fsdp_plugin, acc, model, str(tmp_path))
        save_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path))
        acc.state._reset_state()
        other = Job(fresh(blocks=3), steps=1)
        acc, model, optimizer = begun(other, fsdp_plugin)
        before = copy.deepcopy(acc.strategy.state().full_state_dict(model))
        with pytest.raises(CheckpointMismatchError) as model_error:
            load_fsdp_model(fsdp_plugin, acc, model, str(tmp_path))
        with pytest.raises(CheckpointMismatchError) as optimizer_error:
            load_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path))
        after = acc.strategy.state().full_state_dict(model)
        same = all(torch.equal(before[name], after[name]) for name in before)
        return str(model_error.value), same, str(optimizer_error.value)

    for model_error, same, optimizer_error in run_world(rank_main, 2, how="fork"):
        assert "blocks.2.up.weight" in model_error
        assert "blocks.2.up.weight" in optimizer_error
        assert same


def test_nothing_there_names_the_places_looked_at(tmp_path: Path) -> None:
    def rank_main(rank: int, n: int) -> tuple[str, str]:
        fsdp_plugin = plugin(2)
        acc, model, optimizer = begun(Job(fresh()), fsdp_plugin)
        with pytest.raises(CheckpointError) as model_error:
            load_fsdp_model(fsdp_plugin, acc, model, str(tmp_path))
        with pytest.raises(CheckpointError) as optimizer_error:
            load_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path))
        return str(model_error.value), str(optimizer_error.value)

    model_error, optimizer_error = run_world(rank_main, 1, how="fork")[0]
    assert "pytorch_model_fsdp_0/ nor pytorch_model_fsdp.bin" in model_error
    assert "optimizer_0/ nor optimizer.bin" in optimizer_error


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
@pytest.mark.parametrize("version", [1, 2])
def test_an_adapter_alone(version: int, kind: str, tmp_path: Path) -> None:
    import warnings

    import peft

    def adapted(seed: int) -> Any:
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = peft.LoraConfig(r=2, target_modules=["up"], init_lora_weights=False)
            return peft.get_peft_model(fresh(), config)

    def rank_main(rank: int, n: int) -> tuple[list[str], bool]:
        fsdp_plugin = plugin(version, state_dict_type=kind, transformer_cls_names_to_wrap=["Block"])
        acc = accelerator(Job(fresh()), fsdp_plugin)
        model = acc.prepare(adapted(1))
        save_fsdp_model(fsdp_plugin, acc, model, str(tmp_path), adapter_only=True)
        other = acc.prepare(adapted(2))
        load_fsdp_model(fsdp_plugin, acc, other, str(tmp_path), adapter_only=True)
        a, b = (acc.strategy.state().full_state_dict(m) for m in (model, other))
        folder = tmp_path / "pytorch_model_fsdp_0"
        if kind == "FULL_STATE_DICT":
            names = sorted(torch.load(tmp_path / "pytorch_model_fsdp.bin", weights_only=True))
        else:
            names = sorted(dcp.shapes(folder, "model"))
        return names, all(torch.equal(a[name], b[name]) for name in a)

    names, same = run_world(rank_main, 2, how="fork")[0]
    assert names == sorted(f"base_model.model.blocks.{i}.up.lora_{ab}.weight" for i in (0, 1) for ab in "AB")
    assert same


# Shards brought together


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    job = Job(fresh(tied=True), steps=1)

    def rank_main(rank: int, n: int) -> None:
        fsdp_plugin = plugin(2)
        acc, model, _ = begun(job, fsdp_plugin)
        save_fsdp_model(fsdp_plugin, acc, model, str(tmp_path / "saved"))

    run_world(rank_main, 2, how="fork")
    return tmp_path / "saved", dict(job.model.state_dict())


def test_merged_into_one_file(shards: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    saved, wanted = shards
    merge_fsdp_weights(str(saved / "pytorch_model_fsdp_0"), str(tmp_path / "safe"))
    merge_fsdp_weights(str(saved), str(tmp_path / "pickle"), safe_serialization=False, remove_checkpoint_dir=True)
    assert [path.name for path in (tmp_path / "safe").iterdir()] == ["model.safetensors"]
    safe, plain_file = load_file(tmp_path / "safe" / "model.safetensors"), tmp_path / "pickle" / "pytorch_model.bin"
    assert "head.weight" not in safe, "shared weights are written once"
    for name, tensor in safe.items():
        assert torch.equal(tensor, wanted[name])
    fresh(3, tied=True).load_state_dict(torch.load(plain_file, weights_only=True))
    assert not (saved / "pytorch_model_fsdp_0").exists()


def test_merged_by_the_command_into_several_files(shards: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    saved, wanted = shards
    out = tmp_path / "several"
    command = [sys.executable, "-m", "accelerate.cli.merge", saved, out, "--max_shard_size", "3KB"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    parts = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(parts) > 1
    assert (out / "model.safetensors.index.json").is_file()
    found = {name: tensor for part in parts for name, tensor in load_file(out / part).items()}
    assert set(found) == set(wanted) - {"head.weight"}
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())


def test_nothing_to_merge_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no \.metadata in it"):
        merge_fsdp_weights(str(tmp_path), str(tmp_path / "out"))


# Folders of torch.distributed.checkpoint


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_an_index_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(PickleRefusedError, match="Nothing was loaded"):
        dcp.read_metadata(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_value_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Alone:
        rank, size = 0, 1

        def all_gather_object(self, value: Any) -> list[Any]:
            return [value]

        def barrier(self) -> None:
            return None

    dcp.write(tmp_path, {"model": {"weight": torch.ones(2)}, "note": _Bomb()}, Alone())  # type: ignore[arg-type]
    with pytest.raises(PickleRefusedError, match="'note'"):
        dcp.read(tmp_path)


def test_a_damaged_index_and_a_missing_part_are_named(shards: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder = shards[0] / "pytorch_model_fsdp_0"
    part = folder / "__1_0.distcp"
    part.rename(folder / "gone")
    with pytest.raises(CheckpointDamagedError, match="__1_0.distcp"):
        dcp.read_metadata(folder)
    (folder / "gone").rename(part)
    (folder / ".metadata").write_bytes((folder / ".metadata").read_bytes()[:100])
    with pytest.raises(CheckpointDamagedError, match="cannot be read"):
        dcp.read_metadata(folder)


def test_folders_that_torch_wrote_are_read(tmp_path: Path) -> None:
    """The layout that other libraries share: model.<name>, optimizer.state.<name>.<key>, optimizer.param_groups."""
    import torch.distributed.checkpoint as torch_dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    job = Job(fresh(), steps=2 * STEPS)
    first, second = halves(job)

    def write(rank: int, n: int) -> None:
        model = copy.deepcopy(job.model)
        fully_shard(model, mesh=init_device_mesh("cpu", (n,)))
        optimizer = job.optimizer(model.parameters())
        for (tokens,) in first.batches():
            part = tokens.chunk(n)[rank]
            logits = model(part[:, :-1]).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        model_state, optimizer_state = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
        torch_dcp.save({"model": model_state}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0")
        torch_dcp.save({"optimizer": optimizer_state}, checkpoint_id=tmp_path / "optimizer_0")
        dist.barrier()

    def read(rank: int, n: int) -> list[float]:
        fsdp_plugin = plugin(2)
        acc = accelerator(job, fsdp_plugin)
        model, optimizer = prepare_together(acc, job, fresh(9))
        load_fsdp_model(fsdp_plugin, acc, model, str(tmp_path))
        load_fsdp_optimizer(fsdp_plugin, acc, optimizer, model, str(tmp_path))
        return train(acc, second, model, optimizer).losses

    run_world(write, 2, how="fork")
    assert run_world(read, 4, how="fork")[0] == pytest.approx(plain(job).losses[STEPS:], rel=1e-6)


def test_torch_reads_what_is_written(shards: tuple[Path, dict[str, torch.Tensor]]) -> None:
    import torch.distributed.checkpoint as torch_dcp

    saved, wanted = shards
    state = {"model": {name: torch.empty_like(t) for name, t in wanted.items() if name != "head.weight"}}
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_dcp.load(state, checkpoint_id=saved / "pytorch_model_fsdp_0", no_dist=True)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in state["model"].items())


# Whole state on the main process


@pytest.mark.parametrize("version", [1, 2])
def test_whole_state_is_on_the_main_process_with_clean_names(version: int, tmp_path: Path) -> None:
    job = Job(fresh(tied=True), steps=2)

    def rank_main(rank: int, n: int) -> tuple[list[str], set[str]]:
        acc = accelerator(job, plugin(version, activation_checkpointing=True))
        model, optimizer = prepare_together(acc, job, copy.deepcopy(job.model))
        train(acc, job, model, optimizer)
        state = acc.get_state_dict(model)
        acc.save_model(model, tmp_path / "whole")
        acc.save_model(model, tmp_path / "parts", max_shard_size="3KB", safe_serialization=False)
        return sorted(state), {str(tensor.device) for tensor in state.values()}

    results = run_world(rank_main, 2, how="fork")
    wanted = plain(job)
    assert results[0][0] == sorted(wanted.weights)
    assert results[0][1] == {"cpu"}
    found = load_file(tmp_path / "whole" / "model.safetensors")
    for name, tensor in found.items():
        assert torch.allclose(tensor, wanted.weights[name], atol=1e-5)
    model = fresh(4, tied=True)
    parts = sorted((tmp_path / "parts").glob("*.bin"))
    assert len(parts) > 1
    merged: dict[str, torch.Tensor] = {}
    for part in parts:
        merged.update(torch.load(part, weights_only=True))
    model.load_state_dict(merged)


@pytest.mark.parametrize("version", [1, 2])
def test_whole_state_costs_other_ranks_a_few_units(version: int) -> None:
    width, layers = 1024, 24
    unit = (width * width + width) * 4

    def rank_main(rank: int, n: int) -> tuple[int, int]:
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        settings = {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": width * width}
        acc = accelerator(Job(model), plugin(version, **settings))
        model = acc.prepare(model)
        acc.gather(torch.ones(width, width))
        with growth() as grown:
            state = acc.get_state_dict(model)
        return grown.bytes, sum(tensor.numel() * 4 for tensor in (state or {}).values())

    (_, whole), (grown, held) = run_world(rank_main, 2, how="fork")
    assert whole == layers * unit
    assert held == 0
    shards = layers * unit / 2 if version == 1 else 0  # version 1 has to copy its parts out of flat parameters
    assert grown <= shards + 6 * unit, f"another rank grew by {grown / unit:.1f} units"
