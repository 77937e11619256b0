"""The oldest dependencies with which the tests run are those that pyproject.toml admits."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "joblib", "llm", "mlflow", "serve", "slurm", "tensorboard"


def test_the_lower_bounds_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in EXTRAS]
    wanted = [one for part in (project["dependencies"], *extras) for one in part]
    bounds = {
        requirement.name: Version(specifier.version)
        for requirement in map(Requirement, wanted)
        for specifier in requirement.specifier
        if specifier.operator == ">="
    }
    lines = (ROOT / "constraints" / "minimal.txt").read_text().splitlines()
    pinned = (line.split("==") for line in lines if not line.startswith("#"))
    tested = {name: Version(version) for name, version in pinned}
    assert tested.keys() == bounds.keys()
    for name, bound in bounds.items():  # 1.11.1 where there is no wheel of 1.11.0
        assert tested[name] >= bound
        assert tested[name].release[:2] == (*bound.release, 0)[:2], name
    assert bounds["h11"] >= Version("0.16")  # CVE-2025-43859
