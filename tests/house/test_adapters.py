"""House rule 4, second half: a library from outside is imported where it is adapted, and nowhere else."""

from __future__ import annotations

import sys

from source import OWN, Module, none

# What the package is built on, which any layer above config may import.
EVERYWHERE = {"torch", "numpy", "accelerate"}
ADAPTED = {
    "deepspeed": ("config.deepspeed_start", "strategies.deepspeed", "checkpoint"),
    "megatron": ("strategies.megatron",),
    "torchao": ("precision.ao", "offload"),
    "transformer_engine": ("precision",),
    "msamp": ("precision",),
    "bitsandbytes": ("offload", "quantization"),
    "torchdata": ("data.stateful",),
    "torch_xla": ("devices", "strategies.xla", "comm.xla", "launch.xla", "data.xla", "precision.xla"),
    "habana_frameworks": ("devices",),
    "intel_extension_for_pytorch": ("devices",),
    "transformers": ("offload", "cli.estimate_model", "tracking"),
    "peft": ("strategies.sharded.adapters",),
    "timm": ("cli.estimate_model",),
    "huggingface_hub": ("checkpoint", "offload", "cli.estimate_model"),
    "safetensors": ("checkpoint", "offload", "strategies"),
    "xxhash": ("checkpoint", "comm.frames"),
    "yaml": ("config", "cli", "tracking.tensorboard"),
    "psutil": ("devices", "launch", "offload"),
    "packaging": ("optional",),
    "rich": ("cli", "launch", "progress", "data.replay", "accelerator", "logging"),
    "tqdm": ("progress",),
    "ray": ("launch.ray",),
    "sagemaker": ("launch.sagemaker",),
    "tensorboardX": ("tracking.tensorboard",),
    **{
        name: (f"tracking.{name}",)
        for name in ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio", "wandb")
    },
}


def strays(module: Module) -> list[str]:
    found = []
    for node, name in module.imports:
        library = name.partition(".")[0]
        if library in sys.stdlib_module_names or library in EVERYWHERE:
            continue
        if not module.within(*ADAPTED.get(library, ())):
            home = " or ".join(ADAPTED[library]) if library in ADAPTED else "a place in the table of this test"
            found.append(f"{module.at(node)}: {library} belongs in {home}")
    return found


def test_libraries_stay_where_they_are_adapted() -> None:
    none([line for module in OWN if not module.within("test_utils") for line in strays(module)])


def test_the_rule_sees_a_stray() -> None:
    assert strays(Module("data.loader", "def f():\n    import wandb")) == [
        "data.loader:2: wandb belongs in tracking.wandb"
    ]
    assert strays(Module("data.loader", "from unheard import of")) != []
    assert strays(Module("tracking.wandb", "import wandb, os, torch.nn")) == []
