"""The repository's own modules as syntax trees, for tests about its structure."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("scope_torch", "baselines", "scripts", "hydra_plugins")


@cache
def modules() -> dict[str, Path]:
    """Every module of the repository, by its dotted name."""
    return {
        name_of(path): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def name_of(path: Path) -> str:
    """The dotted name; `scope_torch/baselines` is a link to `baselines`, not followed here."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"scope_torch.{name}" if path.is_relative_to(ROOT / "baselines") else name


@cache
def tree_of(source: str) -> ast.Module:
    """The syntax tree of a source text; nobody changes it."""
    return ast.parse(source)


def imported(source: str) -> Iterator[str]:
    """Modules that a source text imports anywhere: in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides where it leads"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules() else str(node.module)


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the repository that each module imports."""
    return {
        name: {other for other in imported(path.read_text()) if other.split(".")[0] in PACKAGES}
        for name, path in modules().items()
    }
