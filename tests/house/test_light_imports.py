"""House rule 5, second half: what has to start fast loads nothing slow."""

from __future__ import annotations

import json
import subprocess
import sys

from source import MODULES, none

HEAVY = ("torch", "numpy", "transformers", "safetensors", "huggingface_hub", "deepspeed")
LIGHT = ("env", "errors", "optional", "lazy", "topology", "config", "cli", "launch", "commands")
# What runs after the planning: torch's elastic agent.
RUNS_TORCH = ("launch.agent",)
BARE = ("yaml", "rich", "psutil", "packaging", "asyncio", "typing", *HEAVY)
# What `import torch` leaves out and takes tenths of a second each; and what only some programs need.
AFTER_TORCH = (
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.algorithms",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.elastic",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.profiler",
    "torch.utils.tensorboard",
    "deepspeed",
    "huggingface_hub",
    "psutil",
    "rich",
    "torchao",
    "torchdata",
    "tqdm",
    "transformers",
)

# Whoever first asks for a package is named with its line: the innermost frame of this package.
PROBE = """
import importlib, json, sys

first, watched, names = json.loads(sys.argv[1])
for name in first:
    importlib.import_module(name)
blame = {}

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in watched and name not in blame:
            frame = sys._getframe()
            while frame and not frame.f_globals.get("__name__", "").startswith("accelerate"):
                frame = frame.f_back
            blame[name] = f"{frame.f_globals['__name__']}:{frame.f_lineno}" if frame else "the probe"

sys.meta_path.insert(0, Watch)
for name in names:
    importlib.import_module(name)
print(json.dumps({name: who for name, who in blame.items() if name in sys.modules}))
"""


def loaded(names: list[str], watched: tuple[str, ...], first: tuple[str, ...] = ()) -> list[str]:
    """Which of ``watched`` importing ``names`` loads, after ``first``; each with who asked for it."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([first, watched, names])], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return [f"{who} loads {name}" for name, who in json.loads(done.stdout.splitlines()[-1]).items()]


def test_the_package_itself_loads_nothing() -> None:
    none(loaded(["accelerate"], BARE))


def test_light_modules_load_nothing_heavy() -> None:
    light = [module for module in MODULES if module.within(*LIGHT) and not module.within(*RUNS_TORCH)]
    names = [f"accelerate.{module.name}" for module in light if not module.name.endswith("__main__")]
    assert "accelerate.env" in names
    none(loaded(names, HEAVY))


def test_the_main_class_loads_no_more_of_torch() -> None:
    none(loaded(["accelerate.accelerator"], AFTER_TORCH, first=("torch",)))


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded(["accelerate.env", "json.tool"], ("json.tool", "torch")) == ["the probe loads json.tool"]
    [line] = loaded(["accelerate.env"], ("accelerate.errors",))
    assert line.startswith("accelerate.env:")
    assert loaded(["accelerate.env"], ("accelerate.errors",), first=("accelerate.errors",)) == []
