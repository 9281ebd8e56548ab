"""What settings say about each other, once each has its value: strategies exclude each other, sections need one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from accelerate.config.fields import Setting
from accelerate.config.run import RunConfig, all_settings, setting_at
from accelerate.config.sources import Origin, Source, active_sections, build
from accelerate.errors import ConflictError

__all__ = ["published", "settle"]

EXCLUSIVE = ("use_fsdp", "use_deepspeed", "use_megatron_lm")
MEANINGS = {
    "FSDP": "use_fsdp",
    "DEEPSPEED": "use_deepspeed",
    "MEGATRON_LM": "use_megatron_lm",
    "XLA": "tpu",
    "MULTI_CPU": "cpu",
}
"""What a file's ``distributed_type`` switches on; the other MULTI_ words switch ``multi_gpu`` on."""

VERSION_1_DEFAULTS = {"fsdp.use_orig_params": True, "fsdp.sync_module_states": True}


def settle(sources: dict[str, Source]) -> list[str]:
    """Makes the settings agree, in place, and gives what is to be said about it.

    Raises:
        ConflictError: one source asks for two strategies.
    """
    _spread_distributed_type(sources)
    notices = _exclude(sources)
    _switch_on_parallelism(sources)
    _fsdp_defaults(sources)
    _state_distributed_type(sources)
    return notices + _unused(sources)


def _on(sources: Mapping[str, Source], path: str) -> bool:
    return bool(sources[path].value)


def _spread_distributed_type(sources: dict[str, Source]) -> None:
    kind = sources["distributed_type"]
    if kind.value in (None, "NO") or sources["compute_environment"].value != "LOCAL_MACHINE":
        return
    name = MEANINGS.get(kind.value) or ("multi_gpu" if str(kind.value).startswith("MULTI_") else None)
    if name and sources[name].origin <= kind.origin:
        sources[name] = replace(kind, value=True)


def _exclude(sources: dict[str, Source]) -> list[str]:
    """Of several strategies the one from the strongest source stays."""
    wanted = [name for name in EXCLUSIVE if _on(sources, name)]
    # `--multi_gpu` on the command line asks for plain data parallelism, whatever a file has chosen
    plain = sources["multi_gpu"].value and sources["multi_gpu"].origin == Origin.COMMAND_LINE
    if plain and all(sources[name].origin < Origin.COMMAND_LINE for name in wanted):
        wanted.append("multi_gpu")
    if len(wanted) < 2:
        return []
    wanted.sort(key=lambda name: sources[name].origin, reverse=True)
    first, second = sources[wanted[0]], sources[wanted[1]]
    if first.origin == second.origin:
        raise ConflictError(
            f"Two strategies are asked for: `{wanted[0]}` ({first.where}) and `{wanted[1]}` ({second.where}). "
            "Choose one."
        )
    notices = []
    for name in wanted[1:]:
        dropped = sources[name]
        notices.append(f"`{wanted[0]}` ({first.where}) goes before `{name}` ({dropped.where}).")
        sources[name] = Source(origin=first.origin, where=first.where, value=False, overrides=(dropped,))
    return notices


def _switch_on_parallelism(sources: dict[str, Source]) -> None:
    """Sizes in a file or on the command line are meant to be used."""
    if sources["use_parallelism_config"].origin > Origin.DEFAULT:
        return
    said = [
        source
        for path, source in sources.items()
        if path.startswith("parallelism.") and source.origin in (Origin.FILE, Origin.COMMAND_LINE)
    ]
    if said:
        strongest = max(said, key=lambda source: source.origin)
        sources["use_parallelism_config"] = replace(strongest, value=True, overrides=())


def _fsdp_defaults(sources: dict[str, Source]) -> None:
    """A launch starts FSDP with pretrained weights read once; version 1 needs two more settings for that."""
    if not _on(sources, "use_fsdp"):
        return

    def default(path: str, value: Any) -> None:
        if sources[path].value is None:
            sources[path] = Source(origin=Origin.DEFAULT, where="default of a launch", value=value)

    default("fsdp.version", 1)
    default("fsdp.cpu_ram_efficient_loading", True)
    if sources["fsdp.version"].value == 1:
        for path, value in VERSION_1_DEFAULTS.items():
            default(path, value)
    if sources["fsdp.auto_wrap_policy"].value == "SIZE_BASED_WRAP":
        default("fsdp.min_num_params", 100_000_000)


def _state_distributed_type(sources: dict[str, Source]) -> None:
    """``distributed_type`` says what the flags came to."""
    before = sources["distributed_type"]
    for word, name in (("FSDP", "use_fsdp"), ("DEEPSPEED", "use_deepspeed"), ("MEGATRON_LM", "use_megatron_lm")):
        if _on(sources, name):
            if before.value != word:
                overrides = (before,) if before.origin > Origin.DEFAULT else ()
                sources["distributed_type"] = replace(sources[name], value=word, overrides=overrides)
            return
    if before.value in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        sources["distributed_type"] = replace(sources["multi_gpu"], value="MULTI_GPU", overrides=(before,))


def _unused(sources: Mapping[str, Source]) -> list[str]:
    """One notice a section whose flags were given on the command line without the section being in force."""
    active = active_sections(build(sources))
    idle: dict[str, list[Setting]] = {}
    for item in all_settings():
        section = item.path.partition(".")[0] if "." in item.path else ""
        told = sources[item.path].origin == Origin.COMMAND_LINE
        if section and told and section not in active | {"sagemaker", "dynamo"}:
            idle.setdefault(section, []).append(item)
    return [
        f"{', '.join(item.flag or item.path for item in items)} {'has' if len(items) == 1 else 'have'} no effect here. "
        f"{items[0].section.about}"
        for items in idle.values()
    ]


def published(config: RunConfig, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Variables and values that the workers have to see.

    Of the top level, what was said; of a section in force, what was said or what the launch has filled in.
    """
    active = active_sections(config)
    found: dict[str, Any] = {}
    for item in all_settings():
        name, source = item.option.env, sources[item.path]
        if name is None or source.value is None:
            continue
        section = item.path.partition(".")[0] if "." in item.path else ""
        if section and section not in active:
            continue
        if source.origin > Origin.DEFAULT or source.where != "default":
            found[name] = source.value
    if "deepspeed" in active and config.deepspeed.deepspeed_config_file:
        said = [path.partition(".")[2] for path, source in sources.items() if _deepspeed_said(path, source)]
        if said:
            found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(said)
    return found


def _deepspeed_said(path: str, source: Source) -> bool:
    if source.origin == Origin.DEFAULT or path == "deepspeed.deepspeed_config_file":
        return False
    return path.startswith("deepspeed.") and setting_at(path).option.env is not None
