"""House rule 1: files, functions and classes stay small."""

from __future__ import annotations

import ast

from source import MODULES, Module, body_lines, none

FILE, FUNCTION, CLASS, METHODS = 400, 60, 300, 25


def too_large(module: Module) -> list[str]:
    found = []
    lines = module.text.count("\n")
    if lines > FILE:
        found.append(f"{module.name}: {lines} lines, at most {FILE}: split it by subject")
    for node in module.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        size = body_lines(node)
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
            if size > CLASS:
                found.append(f"{module.at(node)}: class {node.name} has {size} lines, at most {CLASS}")
            if methods > METHODS:
                found.append(f"{module.at(node)}: class {node.name} has {methods} methods, at most {METHODS}")
        elif size > FUNCTION:
            found.append(f"{module.at(node)}: {node.name} has {size} lines without its docstring, at most {FUNCTION}")
    return found


def test_sizes() -> None:
    none([line for module in MODULES for line in too_large(module)])


def test_the_rule_sees_what_is_too_large() -> None:
    long_function = "def f():\n" + "    x = 1\n" * FUNCTION
    long_class = "class A:\n" + "    x = 1\n" * CLASS
    many_methods = "class B:\n" + "    def f(self): ...\n" * (METHODS + 1)
    assert len(too_large(Module("m", long_function))) == 1
    assert len(too_large(Module("m", long_class))) == 1
    assert len(too_large(Module("m", many_methods))) == 1
    assert len(too_large(Module("m", "x = 1\n" * (FILE + 1)))) == 1
    assert too_large(Module("m", 'def f():\n    """' + "\n" * FUNCTION + '"""\n')) == []
