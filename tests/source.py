"""The package as text and syntax trees, for the tests of the house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "accelerate"

# Paths of the public interface that only hand names on. Nothing inside imports them.
COMPAT = (
    "utils",
    "commands",
    "hooks",
    "big_modeling",
    "data_loader",
    "checkpointing",
    "optimizer",
    "scheduler",
    "launchers",
    "local_sgd",
    "memory_utils",
    "parallelism_config",
    "inference",
)


@dataclass(frozen=True)
class Module:
    """One source file. ``name`` is dotted and relative to the package: "strategies.ddp", "" for the package itself."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def compat(self) -> bool:
        return self.within(*COMPAT)

    def within(self, *places: str) -> bool:
        """Whether the module is one of these, or inside one of these packages."""
        return any(self.name == place or self.name.startswith(place + ".") for place in places)

    def at(self, node: ast.AST) -> str:
        return f"{self.name or '__init__'}:{getattr(node, 'lineno', 0)}"

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    @cached_property
    def imports(self) -> list[tuple[ast.AST, str]]:
        """Every import, wherever it stands: the node and the dotted name (``from a import b`` gives "a" and "a.b")."""
        found: list[tuple[ast.AST, str]] = []
        for node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                found += [(node, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.append((node, node.module))
                found += [(node, f"{node.module}.{alias.name}") for alias in node.names]
        return found


def load() -> list[Module]:
    """Every module of the package."""
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        modules.append(Module(name, path.read_text(encoding="utf-8")))
    return modules


MODULES = load()
OWN = [module for module in MODULES if not module.compat]


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for such an expression, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def none(found: list[str]) -> None:
    """Fails with one line for each violation."""
    assert not found, "\n  " + "\n  ".join(found)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Lines from ``def`` to the end, without the node's own docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines
