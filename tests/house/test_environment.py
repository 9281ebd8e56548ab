"""House rules 2 and 4: one module reads the environment, and one asks what is installed."""

from __future__ import annotations

import ast
import sys

from source import MODULES, Module, dotted, none

ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"}
PROBES = {
    "find_spec",
    "importlib.util.find_spec",
    "importlib.metadata.version",
    "importlib.metadata.distribution",
    "metadata.version",
    "metadata.distribution",
}

# `accelerate launch -m` looks for the user's own module there.
MAY_PROBE = ("optional", "devices", "launch.worker")


def touches_environment(module: Module) -> list[str]:
    named = ((node, dotted(node)) for node in module.nodes(ast.Attribute))
    found = [f"{module.at(node)}: {name}" for node, name in named if name in ENVIRONMENT]
    found += [f"{module.at(node)}: imports {name}" for node, name in module.imports if name in ENVIRONMENT]
    return found


def _standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def probes(module: Module) -> list[str]:
    found = [
        f"{module.at(node)}: {dotted(node.func)}"
        for node in module.nodes(ast.Call)
        if isinstance(node, ast.Call) and dotted(node.func) in PROBES
    ]
    for node in module.nodes(ast.Try):
        assert isinstance(node, ast.Try)
        caught = {dotted(name) for handler in node.handlers for name in ast.walk(handler.type or ast.Pass())}
        # A module of the standard library may be missing on a platform; that is not a package to install.
        tried = [name for place, name in module.imports if place in node.body and not _standard(name)]
        if tried and caught & {"ImportError", "ModuleNotFoundError"}:
            found.append(f"{module.at(node)}: tries to import {tried[0]}")
    return found


def test_only_env_touches_the_environment() -> None:
    none([line for module in MODULES if module.name != "env" for line in touches_environment(module)])


def test_only_optional_and_devices_ask_what_is_installed() -> None:
    none([line for module in MODULES if not module.within(*MAY_PROBE) for line in probes(module)])


def test_the_rules_see_every_way() -> None:
    for text in (
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ",
        "def f():\n    import os\n    return os.environ.get('A')",
    ):
        assert touches_environment(Module("m", text)), text
    for text in (
        "import importlib.util\nimportlib.util.find_spec('torch')",
        "try:\n    import torch\nexcept ImportError:\n    pass",
        "try:\n    from a import b\nexcept (ValueError, ModuleNotFoundError):\n    b = None",
    ):
        assert probes(Module("m", text)), text
    assert probes(Module("m", "try:\n    import fcntl\nexcept ImportError:\n    fcntl = None")) == []
    assert touches_environment(Module("m", "from accelerate import env\nenv.get('A')")) == []
