"""House rule 3: what varies lives in objects, so nobody branches on the kind of training."""

from __future__ import annotations

import ast

from source import MODULES, OWN, Module, dotted, none

MAY_COMPARE = ("strategies.registry", "state")
# There `config.distributed_type` is a word out of a configuration file, which they translate once.
READ_THE_WORD = ("config", "launch", "cli")


def compares_types(module: Module) -> list[str]:
    found = []
    for node in module.nodes(ast.Compare, ast.Match):
        asked = [node.subject] if isinstance(node, ast.Match) else [node]
        for part in (inner for top in asked for inner in ast.walk(top)):
            name = dotted(part)
            member = name.startswith("DistributedType.") and "__" not in name
            word = name.endswith("config.distributed_type") and module.within(*READ_THE_WORD)
            if member or (name.endswith((".distributed_type", ".legacy_type")) and not word):
                found.append(f"{module.at(node)}: compares {name}; ask the strategy's capabilities")
                break
    return found


def strategy_classes(modules: list[Module]) -> set[str]:
    """Names of the classes that derive from Strategy, however far."""
    bases: dict[str, set[str]] = {}
    for module in modules:
        for node in module.nodes(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            named = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            bases[node.name] = {dotted(base).rpartition(".")[2] for base in named}
    found = {"Strategy"}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found - {"Strategy"}


def asks_for_class(module: Module, classes: set[str]) -> list[str]:
    found = []
    for node in module.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        if dotted(node.func) in ("isinstance", "issubclass") and len(node.args) == 2:
            names = {dotted(part).rpartition(".")[2] for part in ast.walk(node.args[1])}
            found += [f"{module.at(node)}: {dotted(node.func)}(…, {name})" for name in sorted(names & classes)]
    return found


def test_distributed_type_decides_nothing() -> None:
    none([line for module in OWN if not module.within(*MAY_COMPARE) for line in compares_types(module)])


def test_nobody_asks_for_the_class_of_a_strategy() -> None:
    classes = strategy_classes(OWN)
    assert len(classes) >= 2
    none([line for module in MODULES for line in asks_for_class(module, classes)])


def test_the_rules_see_every_way() -> None:
    for text in (
        "if state.distributed_type == DistributedType.FSDP: pass",
        "x = kind in (DistributedType.NO, DistributedType.FSDP)",
        "match self.distributed_type:\n    case _: pass",
        "y = self.state.distributed_type != other",
    ):
        assert compares_types(Module("m", text)), text
    assert compares_types(Module("launch.a", "config.distributed_type == 'NO'")) == []
    assert compares_types(Module("data.a", "config.distributed_type == 'NO'")) != []
    source = Module("m", "class A(Strategy[int]): pass\nclass B(base.A): pass\nclass C: pass\nisinstance(x, (C, m.B))")
    assert strategy_classes([source]) == {"A", "B"}
    assert asks_for_class(source, {"A", "B"}) == ["m:4: isinstance(…, B)"]
