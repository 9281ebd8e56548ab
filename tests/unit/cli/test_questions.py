"""The questionnaire: what is asked on a dozen machines, what is not, and the file it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from accelerate.cli import questions
from accelerate.config.machine import machine_config
from accelerate.config.resolve import resolve
from accelerate.config.run import RunConfig
from accelerate.config.save import write
from accelerate.launch.hardware import Devices


class Scripted:
    """Answers by the beginning of the question; everything else gets its default."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.used: set[str] = set()

    def _answer(self, question: str, default: Any) -> Any:
        self.asked.append(question)
        for start, answer in self.answers.items():
            if question.startswith(start):
                self.used.add(start)
                return answer
        return default

    def select(self, question: str, choices: Sequence[tuple[str, str]], default: str) -> str:
        answer: str = self._answer(question, default)
        assert answer in [value for value, _ in choices], (question, answer)
        return answer

    def text(self, question: str, default: str, check: Callable[[str], str | None]) -> str:
        answer = str(self._answer(question, default))
        assert check(answer) is None, (question, answer)
        return answer

    def confirm(self, question: str, default: bool) -> bool:
        return bool(self._answer(question, default))


CPU, GPU, GPUS, NPUS = (
    Devices(),
    Devices(type="cuda", count=1),
    Devices(type="cuda", count=8),
    Devices(type="npu", count=8),
)

MACHINES: dict[str, tuple[Devices, dict[str, Any], dict[str, Any]]] = {
    "laptop": (CPU, {}, {"distributed_type": "NO", "use_cpu": True, "num_processes": 1}),
    "two processes on a CPU": (CPU, {"How many processes": 2}, {"distributed_type": "MULTI_CPU", "num_processes": 2}),
    "one GPU": (
        GPU,
        {"Mixed precision": "bf16"},
        {"distributed_type": "NO", "mixed_precision": "bf16", "gpu_ids": "all"},
    ),
    "eight GPUs": (GPUS, {}, {"distributed_type": "MULTI_GPU", "num_processes": 8}),
    "eight NPUs": (NPUS, {}, {"distributed_type": "MULTI_NPU", "num_processes": 8}),
    "two machines": (
        GPUS,
        {
            "How many machines": 2,
            "What is the number of this machine": 1,
            "Address of the first machine": "10.0.0.1",
            "Are all machines": False,
            "How do machines find": "c10d",
        },
        {
            "num_processes": 16,
            "num_machines": 2,
            "machine_rank": 1,
            "main_process_ip": "10.0.0.1",
            "rdzv_backend": "c10d",
        },
    ),
    "FSDP": (
        GPUS,
        {"How is the model spread": "fsdp", "Which version": "2", "Names of the layer classes": "LlamaDecoderLayer"},
        {"distributed_type": "FSDP"},
    ),
    "DeepSpeed": (
        GPUS,
        {"How is the model spread": "deepspeed", "Which ZeRO stage": 3, "Where are parameters kept": "cpu"},
        {"distributed_type": "DEEPSPEED"},
    ),
    "fp8 and a compiler": (
        GPUS,
        {
            "Mixed precision": "fp8",
            "Who does fp8": "te",
            "Compile models": True,
            "What does the compiler": "max-autotune",
        },
        {"mixed_precision": "fp8"},
    ),
    "TPU": (CPU, {"Which devices": "tpu", "How many processes": 8}, {"distributed_type": "XLA", "num_processes": 8}),
    "Mac": (Devices(type="mps", count=1), {}, {"distributed_type": "NO", "use_cpu": False}),
    "SageMaker": (
        CPU,
        {"Where does the job run": "AMAZON_SAGEMAKER", "Name of the role": "role"},
        {"compute_environment": "AMAZON_SAGEMAKER", "iam_role_name": "role", "ec2_instance_type": "ml.p3.2xlarge"},
    ),
}


def run(devices: Devices, answers: dict[str, Any]) -> tuple[RunConfig, Scripted]:
    prompt = Scripted(answers)
    config = questions.ask(machine_config(devices.type, devices.count), devices, prompt)
    assert config is not None
    assert prompt.used == set(answers), "an answer was never asked for"
    return config, prompt


@pytest.mark.parametrize("name", MACHINES)
def test_the_file_of_a_machine(tmp_path: Path, name: str) -> None:
    devices, answers, expected = MACHINES[name]
    config, _ = run(devices, answers)
    path = write(config, tmp_path / "config.yaml")
    found = yaml.safe_load(path.read_text())
    assert {key: found.get(key) for key in expected} == expected
    again = resolve(None, {}, path).config
    for switch in ("use_fsdp", "use_deepspeed", "cpu", "tpu", "num_processes", "fsdp", "deepspeed", "dynamo", "fp8"):
        assert getattr(again, switch) == getattr(config, switch), switch


def test_sections_of_the_file(tmp_path: Path) -> None:
    config, _ = run(*MACHINES["FSDP"][:2])
    assert (config.fsdp.version, config.fsdp.reshard_after_forward) == (2, True)
    assert config.fsdp.transformer_layer_cls_to_wrap == ("LlamaDecoderLayer",)
    config, _ = run(*MACHINES["DeepSpeed"][:2])
    assert (config.deepspeed.zero_stage, config.deepspeed.offload_param_device) == (3, "cpu")
    assert (config.deepspeed.zero3_init_flag, config.gradient_accumulation_steps) == (True, 1)
    config, _ = run(*MACHINES["fp8 and a compiler"][:2])
    assert (config.fp8.backend, config.dynamo.backend, config.dynamo.mode) == ("te", "inductor", "max-autotune")


def test_only_what_is_relevant_is_asked() -> None:
    _, laptop = run(CPU, {})
    asked = " ".join(laptop.asked)
    for word in ("Address of the first", "host file", "Megatron", "ZeRO", "FSDP", "cores near", "role"):
        assert word not in asked
    assert len(laptop.asked) <= 7
    _, json_file = run(GPUS, {"How is the model spread": "deepspeed", "Path of a DeepSpeed JSON": "ds.json"})
    assert not any("ZeRO" in question for question in json_file.asked)
    _, first = run(GPUS, {"How is the model spread": "fsdp", "Which version": "1"})
    assert any("What is to be sharded" in question for question in first.asked)
    _, second = run(GPUS, {"How is the model spread": "fsdp", "Which version": "2"})
    assert not any("What is to be sharded" in question for question in second.asked)


def test_mesh_sizes() -> None:
    answers = {"How is the model spread": "fsdp", "Lay the processes out": True, "Over how many ranks is a copy": 4}
    config, prompt = run(GPUS, {**answers, "Over how many ranks is each layer": 2})
    assert config.use_parallelism_config
    assert (config.parallelism.dp_shard_size, config.parallelism.tp_size) == (4, 2)
    assert any("sequence parallelism" in question for question in prompt.asked)


def test_leaving_writes_nothing() -> None:
    class Gone(Scripted):
        def select(self, question: str, choices: Sequence[tuple[str, str]], default: str) -> str:
            raise KeyboardInterrupt

    assert questions.ask(RunConfig(), CPU, Gone({})) is None
