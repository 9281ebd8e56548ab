"""How models are compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerate.config.enums import DynamoBackend
from accelerate.config.filling import fill, filled
from accelerate.config.handlers import KwargsHandler
from accelerate.config.sections.compile import DynamoSection
from accelerate.errors import ConfigError

__all__ = ["TorchDynamoPlugin"]


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """Arguments of ``torch.compile``. ``backend`` NO (and None, where the launch says nothing) compiles nothing.

    ``use_regional_compilation`` compiles the repeated blocks of a model once each instead of the whole model.
    """

    backend: DynamoBackend = filled(DynamoSection, "backend", fallback=DynamoBackend.NO)
    mode: str = filled(DynamoSection, "mode", fallback="default")
    fullgraph: bool = filled(DynamoSection, "use_fullgraph", fallback=False)
    dynamic: bool = filled(DynamoSection, "use_dynamic")
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool = filled(DynamoSection, "use_regional_compilation", fallback=False)

    def __post_init__(self) -> None:
        fill(self)
        if not isinstance(self.backend, DynamoBackend):
            try:
                self.backend = DynamoBackend(str(self.backend).upper())
            except ValueError as error:
                words = ", ".join(word.lower() for word in DynamoBackend.list())
                raise ConfigError(f"backend={self.backend!r} is not known: use one of {words}.") from error

    def to_dict(self) -> dict[str, Any]:
        """Every field; the back end as torch spells it."""
        values = super().to_dict()
        values["backend"] = self.backend.value.lower()
        return values

    def to_kwargs(self) -> dict[str, Any]:
        """The arguments of ``torch.compile`` that were chosen."""
        values = super().to_kwargs()
        values.pop("use_regional_compilation", None)
        return values

    def _usual(self) -> dict[str, Any]:
        return {**super()._usual(), "backend": DynamoBackend.NO.value.lower()}
