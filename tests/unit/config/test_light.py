"""Settings are parsed, resolved and written without torch, in milliseconds."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from accelerate import env
from accelerate.cli.config import config_parser
from accelerate.cli.parser import build_launch_parser
from accelerate.config.resolve import resolve
from accelerate.config import (
    compile, conflict, data, deepspeed, docs, fsdp, handlers, megatron, parallelism, places, precision, project,
    quantization, records, save,
)
import accelerate.utils.dataclasses, accelerate.utils.environment, accelerate.parallelism_config
import accelerate.commands.config.config_args
args = build_launch_parser().parse_args(["--num_processes", "2", "train.py"])
assert resolve(args, env.snapshot()).config.num_processes == 2
config_parser().format_help()
deepspeed.DeepSpeedPlugin.from_settings({"zero_stage": 2})
parallelism.ParallelismConfig(tp_size=2)
heavy = {"torch", "numpy", "transformers", "yaml", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_nothing_heavy_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
