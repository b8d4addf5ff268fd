"""Which part of the library may import which: each floor only from the floors above it in FLOORS."""

import ast

import pytest
from command_line import ROOT

# From the top of the house to its door. A floor is a module or package of ppsim/; those of one line are one floor.
FLOORS = [
    ("errors",),
    ("files", "units", "jit", "progress", "text_table", "yaml_text"),
    ("recurrence",),
    ("actions",),
    ("schedule",),
    ("waiting", "evictions"),
    ("faults",),
    ("schedules",),
    ("lowering",),
    ("costs",),
    ("engines",),
    ("timeline",),
    ("analysis",),
    ("plots",),
    ("interop",),
    ("config_schema",),
    ("config",),
    ("__init__", "pytest_plugin"),
    ("commands",),
    ("cli",),
    ("__main__",),
]

# A function may import from a floor below where a method stands for what that floor does: `Timeline.plot` calls the
# plots. Such an import runs when the method does, so that no module waits for one below it while it loads.
LAZY = {
    "schedule": {"faults", "schedules", "engines", "plots"},  # validate, from_blocks, check, to_text
    "faults": {"lowering"},  # validate of a program
    "costs": {"interop"},  # Model.from_huggingface
    "engines": {"timeline"},  # simulate returns one
    "timeline": {"analysis", "plots", "interop"},  # its views
    "analysis": {"plots", "config"},  # the ledger draws itself; what is asked of a config
    "__init__": {"config"},  # load_config, without loading its checks at `import ppsim`
}

HEIGHT = {name: height for height, floor in enumerate(FLOORS) for name in floor}
MODULES = sorted((ROOT / "ppsim").rglob("*.py"))


def floor_of(path):
    return path.relative_to(ROOT / "ppsim").with_suffix("").parts[0]


def imports(tree, lazy=False):
    """Floors of ppsim that a tree imports, each with whether inside a function; those for type checks are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "ppsim":
            yield from ((name.name if name.name in HEIGHT else "__init__", lazy) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ppsim."):
            yield node.module.split(".")[1], lazy
        elif isinstance(node, ast.Import):
            yield from ((f"{name.name}.__init__".split(".")[1], lazy) for name in node.names if is_ours(name.name))
        yield from imports(node, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_ours(module):
    return module.split(".")[0] == "ppsim"


def test_every_module_stands_on_a_floor():
    assert {floor_of(path) for path in MODULES} <= set(HEIGHT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "ppsim")))
def test_a_module_imports_only_from_the_floors_above_it(path):
    floor = floor_of(path)
    for target, lazy in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if target != floor and not (lazy and target in LAZY.get(floor, ())):
            assert HEIGHT[target] < HEIGHT[floor], f"{floor} imports {target}"


def test_every_lazy_import_that_is_allowed_is_made():
    made = {floor: set() for floor in LAZY}
    for path in MODULES:
        found = imports(ast.parse(path.read_text(encoding="utf-8")))
        made.setdefault(floor_of(path), set()).update(target for target, lazy in found if lazy)
    assert not {floor: allowed - made[floor] for floor, allowed in LAZY.items() if allowed - made[floor]}
