"""Settings of torch.compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerate.config.constants import DYNAMO_BACKENDS, DYNAMO_MODES
from accelerate.config.fields import Section, option
from accelerate.config.kinds import BOOLEAN

__all__ = ["DynamoSection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoSection:
    """What ``dynamo_config`` and the ``--dynamo_*`` flags say."""

    SECTION: ClassVar[Section] = Section(
        name="dynamo",
        title="Compilation",
        yaml="dynamo_config",
        flag_prefix="dynamo_",
        yaml_prefix="dynamo_",
        about="In force with a back end other than `no`.",
    )

    backend: str | None = option(
        None,
        env="ACCELERATE_DYNAMO_BACKEND",
        choices=DYNAMO_BACKENDS,
        choice_aliases=(("torhchxla_trace_once", "torchxla_trace_once"),),
        yaml_aliases=(".dynamo_backend",),
        help="Back end of torch.compile.",
        ask="Which back end of torch.compile?",
    )
    mode: str = option(
        "default",
        env="ACCELERATE_DYNAMO_MODE",
        choices=DYNAMO_MODES,
        help="What the compiler tunes for.",
        ask="What does the compiler tune for?",
    )
    use_fullgraph: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_DYNAMO_USE_FULLGRAPH",
        help="Refuse models that cannot be one graph.",
        ask="Refuse models that cannot be one graph?",
    )
    use_dynamic: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_DYNAMO_USE_DYNAMIC",
        help="Compile for varying shapes.",
        ask="Compile for varying shapes?",
    )
    use_regional_compilation: bool = option(
        False,
        kind=BOOLEAN,
        action="on",
        env="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
        help="Compile repeated blocks once each, which starts faster.",
        ask="Compile repeated blocks once each?",
    )
