"""The style of the house as tests: sizes, names, and what each room alone may touch.

What ruff and import-linter can hold (docstrings, annotations, imports between floors) is held there and
not repeated here. `EXCEPTIONS` carries a reason for each; one that is no longer needed fails, so that the
list only shrinks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
Modules: TypeAlias = dict[str, ast.Module]
"""Syntax trees by path from the root."""

Finding: TypeAlias = tuple[str, str]
"""Where it was found, as ``path`` or ``path:name``, and what is wrong there."""

MODULE_LINES_MAX = 300
FUNCTION_LINES_MAX = 60
POSITIONAL_MAX = 5
PROTOCOL_METHODS_MAX = 6

FORBIDDEN_WORDS = {
    *("util", "utils", "helper", "helpers", "manager", "mgr"),
    *("addr", "buf", "bufs", "cfg", "cnt", "ctx", "err", "exc", "idx", "mem", "msg", "ptr", "tmp", "val"),
}
"""Words that say nothing, and abbreviations; kv, ssd, nbytes, src, dst and fp are the only ones in use."""

FOREIGN_NAMES = {"ctx", "engine_idx", "tmp_path", "tmp_path_factory"}
"""Parameters whose names are click's, pytest's and vLLM's."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("threads", "tierstore/aio.py:asyncio.to_thread"): "verbs that wait for a disk borrow the loop's own executor",
}
"""(rule, where) to the reason why it is let pass."""


@dataclass(frozen=True)
class Territory:
    """Things of the outer world that only some files may touch; a folder ends in a slash."""

    things: frozenset[str]
    allowed: tuple[str, ...]


FILE_CALLS = {
    *("open", "read", "write", "readv", "writev", "pread", "pwrite", "preadv", "pwritev", "lseek", "sendfile"),
    *("fsync", "fdatasync", "sync", "ftruncate", "truncate", "posix_fallocate", "posix_fadvise"),
    *("rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "makedirs", "removedirs"),
    *("O_DIRECT", "O_SYNC", "O_DSYNC"),
}

TERRITORIES = {
    "files": Territory(
        frozenset({"fcntl", *(f"os.{call}" for call in FILE_CALLS)}),
        ("tierstore/disk/", "tierstore/tiers/host_pool.py", "tierstore/benchmark/"),
    ),
    "threads": Territory(
        frozenset(
            {
                *("threading.Thread", "threading.Timer", "_thread", "multiprocessing", "asyncio.to_thread"),
                *("concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor"),
            }
        ),
        ("tierstore/worker.py",),
    ),
    "environment": Territory(frozenset({"os.environ", "os.getenv", "os.putenv"}), ("tierstore/config.py",)),
    "CUDA": Territory(frozenset({"torch.cuda"}), ("tierstore/device/cuda.py",)),
    "Any": Territory(frozenset({"typing.Any"}), ("tierstore/device/", "tierstore/connectors/")),
    "code from bytes": Territory(frozenset({"pickle", "marshal", "shelve", "torch.load", "torch.save"}), ()),
}
"""The host pool is memory behind a descriptor; the benchmark measures the disk without the store."""


@cache
def trees(folder: str) -> Modules:
    """Every module under a folder, by its path from the root."""
    paths = (path for path in sorted((ROOT / folder).rglob("*.py")) if "_pb" not in path.parts)
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def everywhere() -> Modules:
    """Package and tests."""
    return {**trees("tierstore"), **trees("tests")}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for an attribute of a plain name, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return ""


def mentions(tree: ast.AST) -> Iterator[str]:
    """Modules and dotted names that a module imports or speaks of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield dotted(node)


def long_modules(modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        lines = max((statement.end_lineno or 0 for statement in tree.body), default=0)
        if lines > MODULE_LINES_MAX:
            yield path, f"{lines} lines; split it, {MODULE_LINES_MAX} are the most"


def long_functions(modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        for function in functions(tree):
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path}:{function.name}", f"{lines} lines; split it, {FUNCTION_LINES_MAX} are the most"


def many_positional_parameters(modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        for function in functions(tree):
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args) if a.arg not in ("self", "cls")]
            if len(names) > POSITIONAL_MAX:
                yield f"{path}:{function.name}", f"{len(names)} positional parameters; make some keyword-only"


def wide_protocols(modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                methods = [f.name for f in functions(node) if not f.name.startswith("__")]
                if len(methods) > PROTOCOL_METHODS_MAX:
                    yield f"{path}:{node.name}", f"{len(methods)} methods; {PROTOCOL_METHODS_MAX} are the most"


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Names that a module chooses: classes, functions, parameters, variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def words(name: str) -> set[str]:
    """Lower-case words of a snake_case or CamelCase name."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


def empty_names(modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        for name in sorted({Path(path).stem, *names_defined(tree)} - FOREIGN_NAMES):
            for word in sorted(words(name) & FORBIDDEN_WORDS):
                yield f"{path}:{name}", f'"{word}" says too little; use the word of the field, in full'


def broad_excepts(modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        if path == "tierstore/worker.py":  # the top of a worker keeps what it caught for its owner
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                if any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in caught):
                    yield f"{path}:{node.lineno}", "a bare or broad except; name what is expected"


def trespasses(territory: Territory, modules: Modules) -> Iterator[Finding]:
    for path, tree in modules.items():
        if not path.startswith(territory.allowed or ("-",)):
            for name in sorted(set(mentions(tree))):
                if any(name == thing or name.startswith(f"{thing}.") for thing in territory.things):
                    yield f"{path}:{name}", f"only {', '.join(territory.allowed) or 'nobody'} may use it"


def stays_in(territory: Territory) -> Callable[[Modules], Iterator[Finding]]:
    return lambda modules: trespasses(territory, modules)


EVERYWHERE_RULES: dict[str, Callable[[Modules], Iterator[Finding]]] = {
    "module length": long_modules,
    "function length": long_functions,
    "names": empty_names,
    "broad except": broad_excepts,
    "sleep": stays_in(Territory(frozenset({"time.sleep"}), ())),
}
PACKAGE_RULES: dict[str, Callable[[Modules], Iterator[Finding]]] = {
    "positional parameters": many_positional_parameters,
    "protocol width": wide_protocols,
    **{name: stays_in(territory) for name, territory in TERRITORIES.items()},
}
RULES = EVERYWHERE_RULES | PACKAGE_RULES


def findings(rule: str) -> list[Finding]:
    return list(RULES[rule](everywhere() if rule in EVERYWHERE_RULES else trees("tierstore")))


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rule_of(rule: str) -> None:
    broken = [f"{where}: {what}" for where, what in findings(rule) if (rule, where) not in EXCEPTIONS]
    assert not broken, "\n".join(["", *broken])


def test_every_exception_is_still_needed() -> None:
    found = {(rule, where) for rule in RULES for where, _ in findings(rule)}
    assert not set(EXCEPTIONS) - found


BROKEN = {
    "module length": "x = 1\n" * 301,
    "function length": "def long():\n" + "    x = 1\n" * 60,
    "names": "class CacheManager: pass",
    "broad except": "try: pass\nexcept (OSError, Exception): pass",
    "sleep": "from time import sleep",
    "positional parameters": "def wide(a, b, c, d, e, f): pass",
    "protocol width": "class Wide(Protocol[T]):\n" + "".join(f"    def verb{i}(self): ...\n" for i in range(7)),
    "files": "import os\nos.fsync(3)",
    "threads": "import threading\nthreading.Thread()",
    "environment": "from os import environ",
    "CUDA": "import torch\ntorch.cuda.synchronize()",
    "Any": "from typing import Any",
    "code from bytes": "import pickle",
}


@pytest.mark.parametrize("rule", RULES)
def test_code_that_breaks_a_rule_is_found_by_the_rule_of(rule: str) -> None:
    assert list(RULES[rule]({"tierstore/elsewhere.py": ast.parse(BROKEN[rule])}))
