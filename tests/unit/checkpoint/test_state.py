"""save_state and load_state of one process, through the façade."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accelerate import runtime
from accelerate.accelerator import Accelerator
from accelerate.checkpoint.manifest import MANIFEST, Manifest
from accelerate.config.project import ProjectConfiguration
from accelerate.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
    MisplacedArgumentError,
    PickleRefusedError,
    PrepareError,
)

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def fast(fresh_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_CHECKPOINT_FSYNC", "0")


class Counter:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "history": np.arange(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        assert isinstance(state["history"], np.ndarray)


class Run:
    """A small training run, everything in it prepared."""

    def __init__(self, folder: Path | None = None, seed: int = 0, **project: Any) -> None:
        runtime.reset()
        torch.manual_seed(seed)
        config = None
        if folder is not None:
            config = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, **project)
        self.accelerator = Accelerator(cpu=True, project_config=config)
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        loader = torch.utils.data.DataLoader(torch.arange(48.0).view(12, 4), batch_size=2, shuffle=True)
        self.counter = Counter()
        self.net, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            net, optimizer, scheduler, loader
        )
        self.accelerator.register_for_checkpointing(self.counter)

    def steps(self, count: int, after: int = 0, do: Callable[[], Any] = lambda: None) -> list[Any]:
        """Up to ``count`` steps of an epoch, ``do`` after step ``after``; what each saw."""
        seen: list[Any] = []
        for batch in self.loader:
            loss = (self.net(batch) + torch.rand(())).pow(2).sum()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.counter.count += 1
            seen.append((batch[:, 0].tolist(), loss.item(), random.random(), float(np.random.rand())))
            if len(seen) == after:
                do()
            if len(seen) == count:
                break
        return seen


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, asynchronous: bool) -> None:
    run = Run()
    first = run.steps(6)
    path = tmp_path / "c"
    second = run.steps(6, 2, lambda: run.accelerator.save_state(path, asynchronous=asynchronous))
    third = run.steps(6)
    run.accelerator.end_training()
    other = Run(seed=1)
    report = other.accelerator.load_state(path)
    assert not report.missing
    assert not report.unexpected
    assert other.counter.count == len(first) + 2
    assert other.steps(6) == second[2:]
    assert other.steps(6) == third


def test_the_files_have_the_names_that_others_expect(tmp_path: Path) -> None:
    run = Run()
    run.steps(1)
    run.accelerator.save_state(tmp_path / "safe")
    run.accelerator.save_state(tmp_path / "unsafe", safe_serialization=False)
    common = {
        "optimizer.bin",
        "scheduler.bin",
        "sampler.bin",
        "random_states_0.pkl",
        "custom_checkpoint_0.pkl",
        MANIFEST,
    }
    assert {p.name for p in (tmp_path / "safe").iterdir()} == common | {"model.safetensors"}
    assert {p.name for p in (tmp_path / "unsafe").iterdir()} == common | {"pytorch_model.bin"}
    nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).load_state_dict(load_file(tmp_path / "safe/model.safetensors"))
    for path in (tmp_path / "unsafe").iterdir():
        if path.suffix in (".bin", ".pkl"):
            torch.load(path, weights_only=True)
    assert torch.load(tmp_path / "safe/random_states_0.pkl", weights_only=True).keys() >= {
        "step", "random_state", "numpy_random_seed", "torch_manual_seed",
    }  # fmt: skip
    Run(seed=1).accelerator.load_state(tmp_path / "unsafe")


def test_numbers_go_on_after_a_resume_and_old_ones_go(tmp_path: Path) -> None:
    run = Run(tmp_path, total_limit=2)
    assert [Path(str(run.accelerator.save_state())).name for _ in range(3)] == [f"checkpoint_{n}" for n in range(3)]
    assert run.accelerator.save_iteration == 3
    other = Run(tmp_path, total_limit=2)
    assert other.accelerator.resume() == str(tmp_path / "checkpoints" / "checkpoint_2")
    assert other.accelerator.save_iteration == 3
    other.accelerator.save_state()
    # A run that was not resumed overwrites nothing either.
    fresh = Run(tmp_path, total_limit=2)
    fresh.accelerator.save_state()
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"checkpoint_3", "checkpoint_4"}
    other.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_3")
    assert Path(str(other.accelerator.save_state())).name == "checkpoint_5"


def test_resume_starts_anew_where_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    assert run.accelerator.resume() is None
    run.accelerator.save_state()
    monkeypatch.setenv("ACCELERATE_RESUME", "never")
    assert run.accelerator.resume() is None
    monkeypatch.setenv("ACCELERATE_RESUME", str(tmp_path / "checkpoints" / "checkpoint_0"))
    assert run.accelerator.resume() == str(tmp_path / "checkpoints" / "checkpoint_0")
    monkeypatch.setenv("ACCELERATE_RESUME", "auto")
    assert run.accelerator.resume() == str(tmp_path / "checkpoints" / "checkpoint_0")


def test_without_a_folder_there_is_nothing_to_save_to_or_load_from(tmp_path: Path) -> None:
    run = Run()
    with pytest.raises(ConfigError, match="automatic"):
        run.accelerator.save_state()
    with pytest.raises(CheckpointNotFoundError, match="automatic naming is off"):
        run.accelerator.load_state()
    with pytest.raises(ValueError, match="does not exist"):
        run.accelerator.load_state(tmp_path / "nowhere")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="not a checkpoint"):
        run.accelerator.load_state(tmp_path)
    Run(tmp_path).accelerator.save_state()
    with pytest.raises(CheckpointNotFoundError, match="newest is .*checkpoint_0"):
        run.accelerator.load_state(tmp_path / "checkpoints")


def test_compiled_models_have_clean_names(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    whole = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), backend="eager")
    partly = nn.Sequential(torch.compile(nn.Linear(3, 2), backend="eager"), nn.Linear(2, 1))
    whole, partly = accelerator.prepare(whole, partly)
    accelerator.save_state(tmp_path / "c")
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert load_file(tmp_path / "c/model.safetensors").keys() == names
    assert load_file(tmp_path / "c/model_1.safetensors").keys() == names
    accelerator.save_model(partly, tmp_path / "m")
    assert load_file(tmp_path / "m/model.safetensors").keys() == names
    runtime.reset()
    other = Accelerator(cpu=True)
    plain_partly, plain_whole = (
        nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)),
    )
    plain_partly, plain_whole = other.prepare(plain_partly, plain_whole)
    other.load_state(tmp_path / "c")
    assert torch.equal(plain_whole[0].weight, whole.get_submodule("_orig_mod.0").weight)


def two_of_a_kind(
    prepare: Callable[[Accelerator, Any], Any], folder: Path, save: bool, **options: Any
) -> tuple[float, float]:
    """Saves, or loads, two models of one shape; the weights of the generator and the critic."""
    runtime.reset()
    accelerator = Accelerator(cpu=True)
    nets = {"generator": nn.Linear(1, 1), "critic": nn.Linear(1, 1)}
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for name, net in nets.items()}
    for value, net in zip((5.0, 7.0), nets.values(), strict=True):
        nn.init.constant_(net.weight, value if save else 0.0)
    prepare(accelerator, (nets, optimizers))
    if save:
        for name, value in (("generator", 10.0), ("critic", 20.0)):
            nets[name].weight.grad = torch.full((1, 1), value)
            optimizers[name].step()
        accelerator.save_state(folder)
    else:
        accelerator.load_state(folder, **options)
    for name in nets:
        state = optimizers[name].state[nets[name].weight]
        assert state["momentum_buffer"].item() == (10.0 if name == "generator" else 20.0)
    return nets["generator"].weight.item(), nets["critic"].weight.item()


def by_variable(accelerator: Accelerator, held: Any) -> None:
    generator, critic = held[0].values()
    critic_steps, generator_steps = held[1]["critic"], held[1]["generator"]
    generator, critic = accelerator.prepare(generator, critic)
    generator_steps, critic_steps = accelerator.prepare(generator_steps, critic_steps)


def by_variable_turned(accelerator: Accelerator, held: Any) -> None:
    generator, critic = held[0].values()
    critic_steps, generator_steps = held[1]["critic"], held[1]["generator"]
    critic, critic_steps, generator, generator_steps = accelerator.prepare(
        critic, critic_steps, generator, generator_steps
    )


def by_given_name(accelerator: Accelerator, held: Any) -> None:
    objects = [*held[0].values(), *held[1].values()]
    for obj, made in zip(objects, accelerator.prepare(*objects), strict=True):
        name = next(n for table in held for n, value in table.items() if value is obj)
        accelerator.register_name(made, f"{name} {type(obj).__name__}")


def by_given_name_turned(accelerator: Accelerator, held: Any) -> None:
    by_given_name(accelerator, tuple(dict(reversed(table.items())) for table in held))


def by_list(accelerator: Accelerator, held: Any) -> None:
    objects = [*held[0].values(), *held[1].values()]
    accelerator.prepare(*objects)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (by_variable, by_variable),
        (by_variable, by_variable_turned),
        (by_variable_turned, by_variable),
        (by_given_name, by_given_name_turned),
    ],
)
def test_models_of_one_shape_are_told_apart_by_name(
    tmp_path: Path, first: Callable[..., Any], then: Callable[..., Any]
) -> None:
    saved = two_of_a_kind(first, tmp_path / "c", save=True)
    assert saved == (4.0, 5.0)
    assert two_of_a_kind(then, tmp_path / "c", save=False) == saved


@pytest.mark.parametrize(("first", "then"), [(by_list, by_list), (by_variable, by_list), (by_list, by_variable)])
def test_models_of_one_shape_without_names_are_an_error(
    tmp_path: Path, first: Callable[..., Any], then: Callable[..., Any]
) -> None:
    two_of_a_kind(first, tmp_path / "c", save=True)
    with pytest.raises(CheckpointMismatchError, match="nothing tells which is which"):
        two_of_a_kind(then, tmp_path / "c", save=False)
    two_of_a_kind(then, tmp_path / "c", save=False, match="order")


def test_the_same_live_objects_need_no_names(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    nets = accelerator.prepare(*[nn.Linear(1, 1) for _ in range(2)])
    for value, net in zip((1.0, 2.0), nets, strict=True):
        nn.init.constant_(net.weight, value)
    accelerator.save_state(tmp_path / "c")
    for net in nets:
        nn.init.zeros_(net.weight)
    accelerator.load_state(tmp_path / "c")
    assert [net.weight.item() for net in nets] == [1.0, 2.0]


def snapshot(run: Run) -> str:
    state = [run.net.state_dict(), run.optimizer.state_dict(), run.scheduler.state_dict(), run.counter.count]
    return repr([*state, run.loader.state_dict(), torch.get_rng_state().sum().item(), random.getstate()[1][:3]])


def test_one_flipped_byte_is_found_in_every_file_before_anything_changes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.steps(2)
    good = Path(str(run.accelerator.save_state()))
    path = Path(str(run.accelerator.save_state()))
    other = Run(tmp_path, seed=1)
    before = snapshot(other)
    manifest = Manifest.read(path)
    assert manifest is not None
    whats = {"model.safetensors": "model 'net' (Sequential)", "optimizer.bin": "optimizer 'optimizer' (AdamW)",
             "random_states_0.pkl": "random states of rank 0", "custom_checkpoint_0.pkl": "object"}  # fmt: skip
    for name in [*(record.path for record in manifest.files), MANIFEST]:
        data = (path / name).read_bytes()
        middle = len(data) // 2
        (path / name).write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        with pytest.raises(CheckpointDamagedError) as raised:
            other.accelerator.load_state()
        assert name in str(raised.value)
        assert whats.get(name, name) in str(raised.value)
        assert f"load_state({str(good)!r})" in str(raised.value)
        (path / name).unlink()
        with pytest.raises(CheckpointError, match=name):
            other.accelerator.load_state(path)
        (path / name).write_bytes(data)
    assert snapshot(other) == before
    other.accelerator.load_state()


def test_verification_can_be_left_out(tmp_path: Path) -> None:
    run = Run()
    path = Path(str(run.accelerator.save_state(tmp_path / "c")))
    with open(path / "sampler.bin", "ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointDamagedError):
        run.accelerator.load_state(path)
    run.accelerator.load_state(path, verify=False)


def test_a_mismatch_lists_both_sides_and_changes_nothing(tmp_path: Path) -> None:
    path = Run().accelerator.save_state(tmp_path / "c")
    runtime.reset()
    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    extra = nn.Embedding(2, 2)
    before = [p.clone() for p in net.parameters()]
    net, extra = accelerator.prepare(net, extra)
    with pytest.raises(CheckpointMismatchError) as raised:
        accelerator.load_state(path)
    for text in ("2.weight (2, 3)", "model 'extra' (Embedding)", "optimizer 'optimizer' (AdamW)"):
        assert text in str(raised.value)
    assert all(map(torch.equal, before, net.parameters()))
    report = accelerator.load_state(path, strict=False)
    assert "model 'net' (Sequential): 2.weight (2, 3)" in report.missing
    assert "model 'extra' (Embedding)" in report.missing
    assert "optimizer 'optimizer' (AdamW)" in report.unexpected
    assert torch.equal(net[0].weight, load_file(tmp_path / "c/model.safetensors")["0.weight"])


def test_less_may_be_prepared_than_was_saved_which_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Run().accelerator.save_state(tmp_path / "c")
    runtime.reset()
    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    with caplog.at_level("WARNING"):
        report = accelerator.load_state(path)
    assert "scheduler 'scheduler' (StepLR)" in report.unexpected
    assert "not restored into anything" in caplog.text
    assert torch.equal(net[0].weight, load_file(tmp_path / "c/model.safetensors")["0.weight"])


def test_hooks_see_the_folder_and_may_save_models_themselves(tmp_path: Path) -> None:
    run = Run()
    run.steps(1)
    calls: list[Any] = []

    def save(models: list[Any], weights: list[Any], folder: str) -> None:
        calls.append((models, [set(w) for w in weights]))
        torch.save(weights.pop(), Path(folder) / "own.bin")

    def load(models: list[Any], folder: str) -> None:
        models.pop().load_state_dict(torch.load(Path(folder) / "own.bin", weights_only=True))

    handle = run.accelerator.register_save_state_pre_hook(save)
    run.accelerator.save_state(tmp_path / "c")
    assert calls == [([run.net], [set(run.net.state_dict())])]
    handle.remove()
    run.accelerator.save_state(tmp_path / "plain")
    assert len(calls) == 1
    assert not (tmp_path / "c" / "model.safetensors").exists()
    assert "own.bin" in {r.path for r in (Manifest.read(tmp_path / "c") or pytest.fail("no manifest")).files}
    other = Run(seed=1)
    other.accelerator.register_load_state_pre_hook(load)
    other.accelerator.load_state(tmp_path / "c")
    assert torch.equal(other.net[0].weight, run.net[0].weight)
    assert other.optimizer.state_dict()["state"].keys() == run.optimizer.state_dict()["state"].keys()


def test_an_error_in_a_hook_leaves_nothing(tmp_path: Path) -> None:
    run = Run()

    def fail(*args: Any) -> None:
        raise KeyError("mine")

    run.accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        run.accelerator.save_state(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_save_in_the_background_is_waited_for(tmp_path: Path) -> None:
    run = Run()
    save = run.accelerator.save_state(tmp_path / "c", asynchronous=True)
    assert save.wait() == str(tmp_path / "c")  # type: ignore[union-attr]
    assert save.done()  # type: ignore[union-attr]
    assert Path(save).name == "c"


def test_an_error_in_the_background_surfaces_at_the_next_call_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.accelerator.save_state()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("accelerate.checkpoint.save.write_pieces", fail)
    run.accelerator.save_state(asynchronous=True)
    with pytest.raises(CheckpointError, match="no space"):
        run.accelerator.save_state()
    run.accelerator.save_state(asynchronous=True)
    with pytest.raises(CheckpointError, match="no space"):
        run.accelerator.end_training()
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_0"]


def test_saves_in_the_background_come_one_after_the_other(tmp_path: Path) -> None:
    run = Run(tmp_path, total_limit=1)
    for _ in range(4):
        run.steps(1)
        run.accelerator.save_state(asynchronous=True)
    run.accelerator.end_training()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_3"]
    other = Run(tmp_path, seed=1)
    other.accelerator.load_state()
    assert other.counter.count == run.counter.count


def test_large_models_are_split_with_an_index(tmp_path: Path) -> None:
    run = Run()
    run.steps(1)
    run.accelerator.save_state(tmp_path / "c", max_shard_size=60)
    index = json.loads((tmp_path / "c" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(run.net.state_dict())
    assert len(set(index["weight_map"].values())) > 1
    assert not (tmp_path / "c" / "model.safetensors").exists()
    other = Run(seed=1)
    other.accelerator.load_state(tmp_path / "c")
    assert torch.equal(other.net[0].weight, run.net[0].weight)


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    def make() -> Any:
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        model[1].weight = model[0].weight
        return model

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(make())
    accelerator.save_state(tmp_path / "c")
    assert list(load_file(tmp_path / "c/model.safetensors")) == ["0.weight"]
    runtime.reset()
    other = Accelerator(cpu=True)
    loose = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    loose = other.prepare(loose)
    other.load_state(tmp_path / "c")
    assert torch.equal(loose[1].weight, model[0].weight)
    assert torch.equal(loose[0].weight, model[0].weight)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    run = Run()
    run.counter.state_dict = lambda: {"when": Path("x")}  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(CheckpointError, match=r"custom_checkpoint_0\.pkl\['when'\]"):
        run.accelerator.save_state(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_only_what_has_a_state_can_be_registered() -> None:
    with pytest.raises(PrepareError, match="got object"):
        Run().accelerator.register_for_checkpointing(object())


@pytest.mark.parametrize("call", ["save_state", "load_state"])
def test_a_misspelt_keyword_is_named(tmp_path: Path, call: str) -> None:
    with pytest.raises(MisplacedArgumentError, match="asynchronus"):
        getattr(Run().accelerator, call)(tmp_path / "c", asynchronus=True)


def test_a_misspelt_option_in_load_kwargs_is_named(tmp_path: Path) -> None:
    with pytest.raises(MisplacedArgumentError, match="weigths_only"):
        Run().accelerator.load_state(tmp_path, load_kwargs={"weigths_only": False})


def test_a_relative_folder_may_be_left_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = Run(Path("project"), total_limit=1)
    run.accelerator.save_state()
    run.accelerator.save_state(asynchronous=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.accelerator.end_training()
    monkeypatch.chdir(tmp_path)
    assert [p.name for p in (tmp_path / "project" / "checkpoints").iterdir()] == ["checkpoint_1"]


class Reference:
    """The objects of the checkpoints in ``data``, which release 1.15.0 of the reference library wrote."""

    def __init__(self, turned: bool = False) -> None:
        self.accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
        self.custom = Counter()
        self.custom.load_state_dict = lambda state: setattr(self, "seen", state)  # type: ignore[method-assign,assignment]
        net, norm = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
        adam = torch.optim.AdamW(net.parameters(), lr=0.5)
        sgd = torch.optim.SGD(norm.parameters(), lr=0.5, momentum=0.9)
        steps = torch.optim.lr_scheduler.StepLR(adam, 1)
        cycle = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=0.1, total_steps=100)
        loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4, shuffle=True)
        if turned:
            self.norm, self.net, self.sgd, self.adam, *_ = self.accelerator.prepare(norm, net, sgd, adam, loader)
        else:
            made = self.accelerator.prepare(net, norm, adam, sgd, loader, steps, cycle)
            self.net, self.norm, self.adam, self.sgd = made[:4]
        self.accelerator.register_for_checkpointing(self.custom)

    def check(self, kind: str, schedulers: bool = True) -> None:
        expected = json.loads((DATA / f"reference_{kind}.json").read_text())
        assert self.net.weight.tolist() == expected["linear"]
        assert self.norm[1].running_mean.tolist() == expected["norm"]
        assert self.adam.state_dict()["state"][0]["exp_avg"].tolist() == expected["exp_avg"]
        assert self.sgd.state_dict()["state"][0]["momentum_buffer"].tolist() == expected["momentum"]
        if schedulers:
            assert [self.adam.param_groups[0]["lr"], self.sgd.param_groups[0]["lr"]] == expected["lr"]
        assert random.random() == expected["random"]
        assert float(np.random.rand()) == expected["numpy"]
        assert torch.rand(()).item() == expected["torch"]


@pytest.mark.parametrize("kind", ["plain", "unsafe", "two", "stateful"])
def test_checkpoints_of_the_reference_release_load(kind: str) -> None:
    run = Reference()
    report = run.accelerator.load_state(DATA / f"reference_{kind}")
    run.check(kind)
    assert run.seen["l"] == [1, "a"]  # type: ignore[attr-defined]
    assert run.seen["x"] == 5  # type: ignore[attr-defined]
    if kind == "two":
        assert "random states of rank 1" in report.unexpected


def test_they_load_into_another_order_where_shapes_tell() -> None:
    run = Reference(turned=True)
    run.accelerator.load_state(DATA / "reference_plain")
    run.check("plain", schedulers=False)


def test_older_files_with_pickles_are_refused_unless_asked_for(tmp_path: Path) -> None:
    run = Run()
    path = Path(str(run.accelerator.save_state(tmp_path / "c")))
    (path / MANIFEST).unlink()
    (path / "model.safetensors").unlink()
    torch.save(run.net.state_dict(), path / "pytorch_model.bin")
    torch.save({"count": 3, "history": np.arange(3), "where": Path("x")}, path / "custom_checkpoint_0.pkl")
    with pytest.raises(PickleRefusedError, match=r"custom_checkpoint_0\.pkl"):
        run.accelerator.load_state(path)
    assert run.counter.count == 0
    run.accelerator.load_state(path, allow_pickle=True)
    assert run.counter.count == 3
    run.counter.count = 0
    run.accelerator.load_state(path, load_kwargs={"weights_only": False})
    assert run.counter.count == 3


def test_a_name_for_how_to_match_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'sideways'"):
        Run().accelerator.load_state(tmp_path, match="sideways")


def test_the_gradient_scaler_goes_on(tmp_path: Path) -> None:
    def make(mode: str) -> tuple[Accelerator, Any, Any]:
        runtime.reset()
        accelerator = Accelerator(cpu=True, mixed_precision=mode)
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer = accelerator.prepare(net, optimizer)
        return accelerator, net, optimizer

    accelerator, net, optimizer = make("fp16")
    for scale in (1.0, float("inf"), 1.0):
        accelerator.backward(net(torch.ones(1, 2)).sum() * scale)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(tmp_path / "c")
    expected = accelerator.scaler.state_dict()
    assert expected["scale"] == 16384.0  # the first scale is too large for float16 itself, the second step is infinite
    assert torch.load(tmp_path / "c" / "scaler.pt", weights_only=True) == expected
    other, *_ = make("fp16")
    other.load_state(tmp_path / "c")
    assert other.scaler.state_dict() == expected
    plain, *_ = make("no")
    assert "scaler" in plain.load_state(tmp_path / "c").unexpected
