"""House rules 6 and 7: what modules are called, what compatibility paths hold, and how records are written."""

from __future__ import annotations

import ast
import re

import pytest

from source import COMPAT, MODULES, OWN, PACKAGE, Module, dotted, none

# Classes of the public interface, which users build by position or assign to.
PUBLIC_RECORDS = {"CPUInformation", "TensorInformation"}
FORBIDDEN_NAMES = {"utils", "helpers", "misc", "common"}


def holds_code(module: Module) -> list[str]:
    """Statements of a compatibility module that do more than hand names on."""
    found = []
    for node in module.tree.body:
        allowed = isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
        if isinstance(node, ast.Expr):
            allowed = isinstance(node.value, ast.Constant)
        if isinstance(node, ast.If):
            allowed = "TYPE_CHECKING" in ast.dump(node.test) or "__main__" in ast.dump(node.test)
        if not allowed or any(isinstance(inner, ast.Lambda) for inner in ast.walk(node)):
            found.append(f"{module.at(node)}: {type(node).__name__}; a compatibility path only imports")
    return found


def imports_compat(module: Module) -> list[str]:
    compat = {f"accelerate.{name}" for name in COMPAT}
    return sorted(
        {
            f"{module.at(node)}: imports {name}, a compatibility path; import from where it is defined"
            for node, name in module.imports
            if ".".join(name.split(".")[:2]) in compat
        }
    )


def loose_records(module: Module) -> list[str]:
    found = []
    for node in module.nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        for mark in node.decorator_list:
            name = dotted(mark.func if isinstance(mark, ast.Call) else mark)
            record = name.rpartition(".")[2] == "dataclass" and node.name not in PUBLIC_RECORDS
            if record and "slots=True" not in ast.unparse(mark):
                found.append(f"{module.at(node)}: dataclass {node.name} without slots=True")
    return found


def future_missing(module: Module) -> bool:
    annotated = any(
        isinstance(node, ast.AnnAssign) or getattr(node, "returns", None) is not None for node in ast.walk(module.tree)
    )
    return annotated and "from __future__ import annotations" not in module.text


def test_no_module_is_a_drawer() -> None:
    none([module.name for module in OWN if FORBIDDEN_NAMES & set(module.name.split("."))])


def test_compatibility_paths_only_import() -> None:
    none([line for module in MODULES if module.compat for line in holds_code(module)])


def test_nothing_inside_imports_a_compatibility_path() -> None:
    # What ships for `accelerate test` is a user's program, and imports as users do.
    none([line for module in OWN if not module.within("test_utils") for line in imports_compat(module)])


def test_records_have_slots() -> None:
    none([line for module in OWN if not module.within("config") for line in loose_records(module)])


def test_annotations_are_not_evaluated() -> None:
    none([module.name for module in MODULES if future_missing(module)])


def test_nothing_is_put_off() -> None:
    later = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{module.name}:{number}: {line.strip()}"
        for module in MODULES
        for number, line in enumerate(module.text.splitlines(), 1)
        if later.search(line)
    ]
    none(found)


def undocumented(module: Module) -> list[str]:
    found = [] if ast.get_docstring(module.tree) or not module.text.strip() else [f"{module.name}: module"]
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            overloaded = any(dotted(mark).endswith("overload") for mark in node.decorator_list)
            if not ast.get_docstring(node) and not overloaded:
                found.append(f"{module.at(node)}: {node.name} says nothing of itself")
    return found


def test_public_names_are_documented() -> None:
    none([line for module in OWN for line in undocumented(module)])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (holds_code, "def f(): pass"),
        (holds_code, "x = lambda: 1"),
        (imports_compat, "from accelerate.utils import set_seed"),
        (imports_compat, "def f():\n    from accelerate import hooks"),
        (imports_compat, "import accelerate.data_loader as d"),
        (loose_records, "@dataclass\nclass A: pass"),
        (loose_records, "@dataclasses.dataclass(frozen=True)\nclass A: pass"),
        (undocumented, '"""m"""\ndef f(): pass'),
    ],
)
def test_the_rules_see_what_breaks_them(rule: object, text: str) -> None:
    assert rule(Module("m", text)), text  # type: ignore[operator]


def test_the_rules_let_the_rest_pass() -> None:
    handing_on = '"""A path."""\nfrom accelerate.data import x\n__all__ = ["x"]\n'
    assert holds_code(Module("hooks", handing_on)) == []
    assert imports_compat(Module("m", "from accelerate.errors import StateError")) == []
    assert not future_missing(Module("m", "x = 1"))
    assert future_missing(Module("m", "def f() -> int: ..."))


def test_every_folder_is_a_package() -> None:
    # A folder without __init__ can be imported too, but tools that read packages pass it over.
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    none([str(folder.relative_to(PACKAGE)) for folder in folders if not (folder / "__init__.py").exists()])
