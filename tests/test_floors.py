"""The floors of the package: a module imports from its own floor and from those below it."""

import ast
import graphlib
from collections import defaultdict
from collections.abc import Mapping

import pytest
from source_code import imported, imports, modules, tree_of

FLOORS = [
    {"errors", "files", "space", "allowed", "constraints", "problem", "observation", "metrics"}
    | {"factors", "html_table", "reference"},
    {"model"},
    {"bounds"},
    {"space_search"},
    {"search"},
    {"methods", "front_method", "options"},
    {"results"},
    {"runs"},
    {"llm", "serve", "systems", "evaluators", "tasks", "traces", "tracking", "watch"},
    {"selection"},
    {"integrations", "baselines"},
    {"testing"},
    {"cli"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FRONT = "scope_torch"  # for programs that import the package; nothing in the repository needs it
LLM = FLOORS[0] | {"llm"}
TELLING = tuple(
    f"scope_torch.results.{name}" for name in ("words", "table", "figure", "plotting", "page")
)


def room(module: str) -> str:
    return module.split(".")[1]


def arrows(package: str) -> list[tuple[str, str]]:
    """(module, imported module) for the modules of a package, without those of the front."""
    return [
        (name, other)
        for name, others in imports().items()
        if name.split(".")[0] == package and name != FRONT
        for other in sorted(others)
    ]


def test_every_module_stands_on_a_floor():
    rooms = {room(name) for name in modules() if name.startswith("scope_torch.")}
    assert rooms <= FLOOR_OF.keys()


@pytest.mark.slow
def test_no_import_leads_upwards():
    inside = [(a, b) for a, b in arrows("scope_torch") if b.startswith("scope_torch.")]
    inside = [(a, b) for a, b in inside if b != FRONT]
    assert len(inside) > 100
    assert [(a, b) for a, b in inside if FLOOR_OF[room(a)] < FLOOR_OF[room(b)]] == []


def test_the_package_imports_no_package_on_top_of_it():
    assert {b.split(".")[0] for _, b in arrows("scope_torch")} == {"scope_torch"}


def test_llm_clients_know_nothing_of_searches():
    found = [(a, b) for a, b in arrows("scope_torch") if room(a) == "llm"]
    assert found
    assert [(a, b) for a, b in found if room(b) not in LLM] == []


def test_what_runs_a_search_does_not_tell_of_it():
    found = [(a, b) for a, b in arrows("scope_torch") if room(a) == "runs" and room(b) == "results"]
    assert found
    assert [(a, b) for a, b in found if b.startswith(TELLING)] == []


def test_only_the_command_line_knows_the_competitors():
    found = {room(a) for a, b in arrows("scope_torch") if room(b) == "baselines"}
    assert found == {"baselines", "cli"}


@pytest.mark.parametrize("package", ["scope_torch", "scripts", "hydra_plugins"])
def test_the_front_is_for_others(package):
    assert [(a, b) for a, b in arrows(package) if b == FRONT] == []


def classes_asked_for(source: str) -> set[str]:
    """Names of the classes that `isinstance` is asked about."""
    calls = (node for node in ast.walk(tree_of(source)) if isinstance(node, ast.Call))
    asked = (call.args[1] for call in calls if getattr(call.func, "id", "") == "isinstance")
    return {node.id for one in asked for node in ast.walk(one) if isinstance(node, ast.Name)}


def test_a_search_asks_no_part_of_which_class_it_is():
    """Who adds a surrogate, minima or a certificate writes their methods, and no search changes."""
    paths = {room(name): [] for name in modules() if name.startswith("scope_torch.")}
    for name, path in modules().items():
        if name.startswith("scope_torch."):
            paths[room(name)].append(path.read_text())
    names = ("certificate", "fresh", "population")
    certificates = [modules()[f"scope_torch.search.{name}"].read_text() for name in names]
    parts = {
        node.name
        for source in (*paths["model"], *paths["space_search"], *certificates)
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.ClassDef)
    }
    assert {"QuerySurrogate", "GridPosterior", "LowerBounds", "ByBounds", "BySequence"} <= parts
    assert set().union(*map(classes_asked_for, paths["search"])) & parts == set()


@pytest.mark.parametrize("classes", ["LowerBounds", "(int, LowerBounds)", "int | LowerBounds"])
def test_a_class_that_is_asked_for_is_found(classes):
    assert "LowerBounds" in classes_asked_for(f"if isinstance(minima, {classes}):\n    pass")


def classes_of_one_name(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of public classes that several modules define, each with its modules."""
    found = defaultdict(list)
    for module, source in sources.items():
        for node in tree_of(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_two_classes_have_one_name():
    paths = {n: path for n, path in modules().items() if n.startswith("scope_torch.")}
    assert classes_of_one_name({name: path.read_text() for name, path in paths.items()}) == {}


def test_two_classes_of_one_name_are_found():
    sources = {"a": "class Plan:\n    class Row: ...\nclass _P: ...", "b": "class Plan(Row): ..."}
    assert classes_of_one_name({**sources, "c": "class Row: ...\nclass _P: ..."}) == {
        "Plan": ["a", "b"]
    }


def test_no_circle_of_modules():
    graphlib.TopologicalSorter(imports()).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import scope_torch.space as s", "scope_torch.space"),
        ("def f():\n    from scope_torch.runs import runner", "scope_torch.runs.runner"),
        ("if TYPE_CHECKING:\n    from scope_torch.bounds import Beta", "scope_torch.bounds"),
    ],
)
def test_imports_are_found_wherever_they_stand(source, module):
    assert list(imported(source)) == [module]


def test_a_circle_is_found():
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()
