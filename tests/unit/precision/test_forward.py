"""The mixed-precision forward: what goes through it, what it leaves alone, how it is taken off."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from functools import partial

import pytest
import torch

from accelerate.precision import forward

CONTEXT = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
Pair = namedtuple("Pair", ["first", "second"])


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.linear(x) * scale


@dataclasses.dataclass
class Output(OrderedDict):
    """A ModelOutput-like mapping: dataclass fields are its items."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


def test_outputs_are_float32_and_the_inside_is_not() -> None:
    model = forward.install(Model(), CONTEXT)
    inside = []
    model.linear.register_forward_hook(lambda m, i, o: inside.append(o.dtype))
    assert model(torch.randn(2, 4)).dtype == torch.float32
    assert inside == [torch.bfloat16]


def test_the_signature_stays_readable() -> None:
    assert list(inspect.signature(forward.install(Model(), CONTEXT).forward).parameters) == ["x", "scale"]


def test_an_instance_forward_is_kept_inside_and_comes_back() -> None:
    model = Model()
    model.forward = lambda x: Model.forward(model, x) + 100  # type: ignore[method-assign]
    before = model.forward
    forward.install(model, CONTEXT)
    assert model(torch.zeros(1, 4)).min() > 90
    assert list(inspect.signature(model.forward).parameters) == ["x"]
    forward.remove(model)
    assert model.forward is before


def test_installed_twice_is_installed_once() -> None:
    model = forward.install(Model(), CONTEXT)
    first = model.__dict__["forward"]
    assert forward.install(model, CONTEXT).__dict__["forward"] is first
    forward.remove(model)
    assert "forward" not in model.__dict__
    assert model(torch.randn(2, 4)).dtype == torch.float32


def test_a_copy_runs_its_own_weights() -> None:
    model = forward.install(Model(), CONTEXT)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.linear.weight.zero_()
        twin.linear.bias.fill_(3.0)
    assert torch.equal(twin(torch.randn(2, 4)), torch.full((2, 4), 3.0))
    assert not torch.equal(model(torch.randn(2, 4)), torch.full((2, 4), 3.0))


def test_a_pickled_model_comes_back_without_a_trace_of_this_process() -> None:
    model = forward.install(Model(), CONTEXT)
    back = pickle.loads(pickle.dumps(model))
    assert back.forward.__self__ is back


def test_compiles_in_one_graph() -> None:
    model = forward.install(Model(), CONTEXT)
    out = torch.compile(model, backend="eager", fullgraph=True)(torch.randn(2, 4))
    assert out.dtype == torch.float32


def test_containers_keep_type_and_other_values() -> None:
    low = torch.ones(2, dtype=torch.bfloat16)
    whole = torch.ones(2, dtype=torch.int64)
    out = forward.outputs_to_float32({"a": [low, whole], "b": Pair(low, "text"), "c": (None, True)})
    assert out["a"][0].dtype == torch.float32
    assert out["a"][1] is whole
    assert type(out["b"]) is Pair
    assert out["b"].first.dtype == torch.float32
    assert out["b"].second == "text"
    assert out["c"] == (None, True)


def test_a_model_output_keeps_its_type_and_its_attributes() -> None:
    given = Output(loss=torch.tensor(1.5, dtype=torch.bfloat16), logits=torch.ones(3, dtype=torch.float16))
    out = forward.outputs_to_float32(given)
    assert type(out) is Output
    assert out.loss is out["loss"]
    assert (out.loss.dtype, out.logits.dtype) == (torch.float32, torch.float32)


def test_large_outputs_beside_a_loss_are_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LARGE_OUTPUT_ELEMENTS", 8)
    logits = torch.ones(9, dtype=torch.bfloat16)
    loss = torch.tensor(1.0, dtype=torch.bfloat16)
    out = forward.outputs_to_float32({"loss": loss, "logits": logits})
    assert out["loss"].dtype == torch.float32
    assert out["logits"] is logits, "the loss is inside, so nothing will be computed from these again"
    alone = forward.outputs_to_float32({"logits": logits})
    assert alone["logits"].dtype == torch.float32, "without a loss these are what it is computed from"


@pytest.mark.parametrize(("policy", "dtype"), [("unchanged", torch.bfloat16), ("float32", torch.float32)])
def test_the_switch(policy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LARGE_OUTPUT_ELEMENTS", 1)
    out = forward.outputs_to_float32({"loss": torch.ones(2), "logits": torch.ones(2, dtype=torch.bfloat16)}, policy)
    assert out["logits"].dtype == dtype


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    logits: torch.Tensor
    name: str = "x"
    loss: torch.Tensor | None = None


def test_a_dataclass_is_converted_and_keeps_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    low = torch.ones(3, dtype=torch.bfloat16)
    given = Record(low)
    found = forward.outputs_to_float32(given)
    assert (type(found), found.name, found.logits.dtype) == (Record, "x", torch.float32)
    assert given.logits.dtype == torch.bfloat16
    monkeypatch.setattr(forward, "LARGE_OUTPUT_ELEMENTS", 2)
    found = forward.outputs_to_float32(Record(low, loss=low.sum()))
    assert (found.loss.dtype, found.logits.dtype) == (torch.float32, torch.bfloat16)
    whole = Record(torch.ones(3))
    assert forward.outputs_to_float32(whole) is whole


def test_a_mapping_keeps_what_it_is_besides_its_items() -> None:
    given = defaultdict(list, a=torch.ones(1, dtype=torch.float16))
    found = forward.outputs_to_float32(given)
    assert found["a"].dtype == torch.float32
    assert found["new"] == []
