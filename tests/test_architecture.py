"""Imports go one way, modules stay small, and what a function is for stands beside it.

The table, from the ground up; a group may import itself and the groups that it names:

    ground       errors, units, intervals, names of events
    facts        model, cluster, backend, bucket rules, the trace: frozen values and pure functions of them
    scenario     the question as one value, and its JSON
    engine       programs against a clock; it knows no collective and no strategy
    collectives  programs over channels; they know no strategy
    strategies   DataParallel, DistributedDataParallel, one device
    simulate     scenario in, trace out
    reading      numbers of a trace; never the engine, so that measured and imported traces are read alike
    comparing    several runs and a sentence about them; stands above simulate
    presets      names into parts of a scenario; nothing of them runs
    views        pictures and text of traces, comparisons and scenarios; never the engine
    importers    files and modules from outside into facts
    validation   starts torch.distributed and compares
    app          the command line and the pages; nothing imports them

Imports for type checkers alone do not count. `tests`, `lessons` and `app.py` stand above `simulator`.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "simulator"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
MOST_LINES = 300

GROUPS = {
    "ground": ("errors", "units", "intervals", "events"),
    "facts": ("model", "cluster", "backend", "buckets", "bucket_file", "pieces", "trace"),
    "scenario": ("scenario", "codec"),
    "engine": ("verbs", "network", "host", "streams", "recorder", "engine", "network_file", "programs"),
    "collectives": ("collectives",),
    "strategies": ("training", "single_device", "data_parallel", "distributed_data_parallel"),
    "simulate": ("simulate",),
    "reading": ("critical_path", "metrics", "moment"),
    "comparing": ("compare", "verdict", "sweep"),
    "presets": ("presets",),
    "views": ("views",),
    "importers": ("importers",),
    "validation": ("validation",),
    "app": ("app_pages", "__main__"),
}
RUNNING = ("ground", "facts", "scenario", "engine", "collectives", "strategies", "simulate")
MAY_IMPORT = {
    "ground": (),
    "facts": ("ground",),
    "scenario": ("ground", "facts"),
    "engine": ("ground", "facts"),
    "collectives": ("ground", "facts", "engine"),
    "strategies": ("ground", "facts", "scenario", "engine", "collectives"),
    "simulate": RUNNING[:-1],
    "reading": ("ground", "facts", "scenario"),
    "comparing": ("ground", "facts", "scenario", "simulate", "reading"),
    "presets": ("ground", "facts", "scenario"),
    "views": ("ground", "facts", "scenario", "reading", "comparing"),
    "importers": ("ground", "facts", "scenario", "presets"),
    "validation": (*RUNNING, "reading", "comparing", "presets", "views", "importers"),
    "app": (*RUNNING, "reading", "comparing", "presets", "views", "importers", "validation"),
}
EXCEPTIONS = {"simulator.presets.record": ("importers",)}
"""It writes the preset files by importing real modules; nothing imports it."""
OUTSIDE = {
    "torch": ("importers", "validation"),
    "streamlit": ("app",),
    "matplotlib": ("views", "validation"),
    "networkx": ("facts", "views", "app"),
    "numpy": ("collectives", "views", "validation", "importers", "app"),
    "lessons": (),
    "tests": (),
}
"""Who may import what is not ours."""


def group_of(module: str) -> str:
    part = (*module.split("."), "")[1]
    found = [group for group, parts in GROUPS.items() if part in parts]
    assert len(found) == 1, f"{module} stands in no group: add it to GROUPS in tests/test_architecture.py"
    return found[0]


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Modules imported anywhere in a file, functions included, but not for type checkers alone."""
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in inside if name in MODULES} or {node.module or ""}
        left += [] if is_for_type_checkers(node) else list(ast.iter_child_nodes(node))
    return frozenset(found)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "simulator"])
def test_imports_go_one_way(module: str) -> None:
    group = group_of(module)
    allowed = {group, *MAY_IMPORT[group], *EXCEPTIONS.get(module, ())}
    for name in imports_of(MODULES[module]):
        top = name.split(".")[0]
        if top == "simulator" and name != "simulator":
            assert group_of(name) in allowed, f"{module} ({group}) imports {name} ({group_of(name)})"
        elif top in OUTSIDE:
            assert group in OUTSIDE[top], f"{module} ({group}) imports {top}"


def test_the_package_itself_imports_nothing() -> None:
    assert imports_of(MODULES["simulator"]) == frozenset()


def test_the_table_has_no_circle() -> None:
    order = list(GROUPS)
    for group, others in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(group) for other in others), group


def test_the_app_is_imported_by_nothing_in_the_package() -> None:
    for module, path in MODULES.items():
        if module != "simulator" and group_of(module) != "app":
            assert not any(name.startswith(("simulator.app_pages", "simulator.__main__")) for name in imports_of(path))


LIGHT = [
    "simulator", "simulator.simulate", "simulator.compare", "simulator.verdict", "simulator.metrics", "simulator.codec",
    "simulator.network_file", "simulator.bucket_file", "simulator.presets.build", "simulator.collectives.vectorised",
    "simulator.views.text", "simulator.views.report", "simulator.views.chrome_trace", "simulator.__main__",
]  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_the_core_loads_neither_torch_nor_streamlit_nor_matplotlib(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'streamlit', 'matplotlib'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_read_in_one_sitting(module: str) -> None:
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES, f"{module} has {lines} lines: split it by idea"


def undocumented(tree: ast.Module) -> list[str]:
    """Public functions, classes and their public methods without a docstring; a Protocol's members are only shapes."""
    found: list[str] = []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            whole = isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "Protocol" for base in node.bases)
            named = [item for item in (node, *(node.body if whole else ())) if isinstance(item, kinds)]
            found += [item.name for item in named if not item.name.startswith("_") and not ast.get_docstring(item)]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_is_for(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body, f"{module} has no docstring"
    assert undocumented(tree) == []
