"""The packages themselves: nothing is unpickled, evaluated or loaded as code from data."""

import ast

import pytest
from source_code import ROOT, tree_of

PACKAGES = ("scope_torch", "baselines", "hydra_plugins", "scripts")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FORBIDDEN = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "tarfile", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}
# The source of functions that run already is compiled to be compared with them, and never run.
# What a search sends to the workers of the user's own executor, and what they send home, is pickled
# as the executor itself does it; no file and no reply of a server is.
ALLOWED = {
    "scope_torch/runs/functions.py": ["compile"],
    "scope_torch/evaluators/elsewhere.py": ["pickle", "cloudpickle"],
}


def faults(source: str) -> list[str]:
    """What a module does that lets data become code."""
    found = []
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            found += called(node)
    return found


def called(node: ast.Call) -> list[str]:
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    options = {option.arg: ast.unparse(option.value) for option in node.keywords}
    given = [*map(ast.unparse, node.args), *options.values()]
    if name in CALLS or last == "extractall":
        return [name]
    if name == "torch.load" and options.get("weights_only") != "True":
        return [name]
    if name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
        return [name]
    safe = any(loader in text for loader in SAFE_LOADERS for text in given)
    if "yaml" in name and last.startswith("load") and not safe:
        return [name]
    if options.get("shell") == "True":
        return [f"{name}(shell=True)"]
    return []


@pytest.mark.slow
def test_no_data_becomes_code():
    found = {str(path.relative_to(ROOT)): faults(path.read_text()) for path in FILES}
    assert len(found) > 200
    assert {path: calls for path, calls in found.items() if calls} == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "eval('1')", "exec(text)", "torch.load(path)",
        "torch.load(path, weights_only=False)", "np.load(path)", "np.load(p, allow_pickle=True)",
        "yaml.load(text)", "yaml.load(text, Loader=yaml.FullLoader)", "os.system(command)",
        "subprocess.run(command, shell=True)", "__import__(name)", "import joblib",
        "archive.extractall()",
    ],
)  # fmt: skip
def test_what_would_be_found(source):
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    ["torch.load(p, weights_only=True)", "yaml.load(t, Loader=yaml.SafeLoader)",
     "yaml.safe_load(t)", "self.system(x)", "re.compile(x)",
     "np.load(p, allow_pickle=False)", "subprocess.run(command)"],
)  # fmt: skip
def test_what_is_fine(source):
    assert not faults(source)
