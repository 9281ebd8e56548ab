"""House rule 5, second half: what has to start fast does not load torch."""

from __future__ import annotations

import json
import subprocess
import sys

from source import MODULES, none

HEAVY = ("torch", "numpy", "transformers", "safetensors", "huggingface_hub", "deepspeed")
LIGHT = ("env", "errors", "optional", "lazy", "topology", "config", "cli", "launch", "commands")
# What runs after the planning: torch's elastic agent.
RUNS_TORCH = ("launch.agent",)

PROBE = """
import importlib, json, sys
heavy, names = json.loads(sys.argv[1])
blame, bare = {}, []
import accelerate
bare = sorted({"yaml", "rich", "psutil", "packaging", "asyncio", *heavy} & set(sys.modules))
for name in names:
    importlib.import_module(name)
    for package in heavy:
        if package in sys.modules and package not in blame:
            blame[package] = name
print(json.dumps([bare, blame]))
"""


def probe(names: list[str]) -> tuple[list[str], dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([HEAVY, names])], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    bare, blame = json.loads(done.stdout.splitlines()[-1])
    return bare, blame


def test_light_modules_load_nothing_heavy() -> None:
    names = [
        f"accelerate.{module.name}" for module in MODULES if module.within(*LIGHT) and not module.within(*RUNS_TORCH)
    ]
    assert "accelerate.env" in names
    bare, blame = probe([name for name in names if not name.endswith("__main__")])
    none([f"`import accelerate` loads {package}" for package in bare])
    none([f"{module} loads {package}" for package, module in blame.items()])


def test_the_probe_sees_torch() -> None:
    assert probe(["accelerate.env", "accelerate.runtime", "torch"])[1]["torch"] == "torch"
