"""TRL's SFTTrainer, in the test's own ranks and from TRL's command line, which starts our launch in its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from clients.jobs import llama, world
from clients.test_trainer_sharded import fsdp

TEXTS = [f"w{i} " + " ".join(f"w{(i + k) % 20}" for k in range(2 + i % 7)) for i in range(40)]


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<unk>": 0, "<pad>": 1, "<eos>": 2, **{f"w{i}": 3 + i for i in range(60)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")


@pytest.mark.parametrize(
    ("ranks", "kind", "settings"),
    [
        pytest.param(1, "NO", {}, id="one process"),
        pytest.param(2, "MULTI_CPU", {}, id="DDP"),
        pytest.param(2, "FSDP", fsdp(2), id="FSDP2"),
        pytest.param(2, "MULTI_CPU", {"packing": True, "packing_strategy": "wrapped"}, id="packed"),
    ],
)
def test_fine_tuning(tmp_path: Path, ranks: int, kind: str, settings: dict[str, Any]) -> None:
    def tune() -> tuple[str, list[float], float]:
        trainer = SFTTrainer(
            model=llama(),
            args=SFTConfig(
                str(tmp_path),
                per_device_train_batch_size=4 // ranks,
                max_steps=20,
                logging_steps=1,
                learning_rate=2e-2,
                lr_scheduler_type="constant",
                max_length=12,
                report_to=[],
                save_strategy="no",
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                **settings,
            ),
            train_dataset=Dataset.from_dict({"text": TEXTS}),
            eval_dataset=Dataset.from_dict({"text": TEXTS[:7]}),
            processing_class=tokenizer(),
        )
        trainer.train()
        losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
        return trainer.accelerator.distributed_type.value, losses, trainer.evaluate()["eval_loss"]

    found = world(tune, ranks)
    for told_kind, losses, evaluated in found:
        assert told_kind == kind
        assert losses == found[0][1]
        assert sum(losses[-4:]) < sum(losses[:4]) - 4
        assert evaluated < losses[0] - 1


@pytest.mark.timeout(180)
def test_the_command_line(tmp_path: Path) -> None:
    """A configuration of ours, two processes, a model and data in folders."""
    llama(max_position_embeddings=64).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    (tmp_path / "launch.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 2\n"
        "mixed_precision: 'no'\nuse_cpu: true\n"
    )
    command = [
        *(
            sys.executable,
            "-c",
            "from trl.cli import main; main()",
            "sft",
            "--accelerate_config",
            tmp_path / "launch.yaml",
        ),
        *("--model_name_or_path", tmp_path / "model", "--dataset_name", tmp_path / "data"),
        *("--output_dir", tmp_path / "out", "--max_steps", "6", "--logging_steps", "1", "--learning_rate", "2e-2"),
        *("--per_device_train_batch_size", "2", "--max_length", "12", "--report_to", "none", "--bf16", "false"),
        *("--gradient_checkpointing", "false", "--lr_scheduler_type", "constant", "--use_cpu", "true"),
    ]
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "out" / "checkpoint-6" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert state["num_train_epochs"] == 1 and state["epoch"] == pytest.approx(6 / 10)
    assert (tmp_path / "out" / "model.safetensors").is_file()
