"""What the pages of docs/ show, done; and their links."""

import contextlib
import io

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from integration.doc_pages import DOCS, ROOT, anchors, commands, links, python, write_files

from scope_torch.cli import (
    COMMANDS,
    compose,  # noqa: F401 - registers the schemas
)
from scope_torch.cli.registry import config_dir

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if python(page)]
HOW_TOS = sorted((DOCS / "howto").glob("*.md"))
TEXTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "LOG.md", "benchmarks/RESULTS.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "scope_torch").rglob("README.md")),
]


def name_of(page):
    return str(page.relative_to(ROOT))


LONG = ("more-than-one-machine.md",)
RUN = [pytest.param(page, marks=[pytest.mark.slow] * (page.name in LONG)) for page in PAGES]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "OPENAI_API_KEY", "-"
    )  # an endpoint of OpenAI's asks for it; nobody is called
    write_files(page, tmp_path)
    names = {"__name__": "page"}
    for number, block in enumerate(python(page)):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    assert "Error" not in capsys.readouterr().out


def test_the_how_tos_show_how():
    assert {page.stem for page in PAGES} >= {page.stem for page in HOW_TOS} - {
        "multiruns",
        "your-application",
        "factors",  # tests/selection/test_choices_with_factors.py
    }


def _classes_of(page):
    """The names that the blocks with classes of a page define."""
    names = {"__name__": __name__}  # or pytest would not take its classes for those of this file
    with contextlib.redirect_stdout(io.StringIO()):
        for block in python(page):
            if "class " in block:
                exec(compile(block, page.name, "exec"), names)
    return {name: value for name, value in names.items() if name.startswith("Test")}


SUITES: dict[str, type] = {}
for one in ("own-kernel", "own-optimizer", "own-rule"):
    SUITES |= _classes_of(DOCS / f"howto/{one}.md")
globals().update(SUITES)  # and pytest runs them


def test_the_conformance_suites_of_the_pages_are_run():
    assert set(SUITES) == {"TestMatern32", "TestWeightedOverlap", "TestDescent", "TestPatience"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "module", "choice"),
    [
        ("own-kernel", "my_kernels", "kernel=matern32"),
        ("own-optimizer", "my_methods", "method=descent"),
    ],
)
def test_an_extension_on_the_command_line(page, module, choice, cli, tmp_path, monkeypatch):
    page = DOCS / f"howto/{page}.md"
    write_files(page, tmp_path)
    (source,) = [block for block in python(page) if "(Hamming" in block or "(Sequential" in block]
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SCOPE_ALLOW_TARGETS", module)
    arguments = ["--config-dir", "my_conf", choice, "task=synthetic", "device=cpu"]
    status, out, err = cli(*arguments, "budget_usd=0.5")
    assert status == 0, err
    assert "spent 0.5" in out
    assert f"{' '.join(['scope-torch', *arguments[:3]])}`" in page.read_text()


TRACKER = """
from scope_torch import Callback


class Mine(Callback):
    def __init__(self, address):
        self.address = address

    def end(self, result):
        print(f"sent to {self.address}")
"""


@pytest.mark.slow
def test_a_tracker_of_ones_own_has_arguments(cli, tmp_path, monkeypatch):
    """As docs/howto/multiruns.md says."""
    (tmp_path / "my_trackers.py").write_text(TRACKER)
    (tmp_path / "my_conf" / "tracking").mkdir(parents=True)
    config = "_target_: my_trackers.Mine\naddress: here\n"
    (tmp_path / "my_conf" / "tracking" / "mine.yaml").write_text(config)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SCOPE_ALLOW_TARGETS", "my_trackers")
    arguments = ["--config-dir", "my_conf", "task=synthetic", "budget_usd=0.05", "tracking=mine"]
    status, out, err = cli(*arguments)
    assert status == 0, err
    assert "sent to here" in out
    status, out, err = cli(*arguments, "budget_usd=0.06", "tracking.address=there")
    assert status == 0, err
    assert "sent to there" in out


@pytest.mark.slow
def test_a_task_of_ones_own_on_the_command_line(cli, tmp_path):
    page = DOCS / "howto/own-data.md"
    write_files(page, tmp_path)
    exec(python(page)[0], {})
    status, out, err = cli("--config-dir", "my_conf", "task=my_table", "device=cpu")
    assert status == 0, err
    assert "my_table scope_joint seed 0" in out
    status, same, err = cli(*next(commands(page)), "device=cpu")
    assert status == 0, err
    assert same.splitlines()[0].partition(":")[2] == out.splitlines()[0].partition(":")[2]


def _one_job(arguments, tmp_path):
    """What the first job of a command would run."""
    overrides = []
    for override in OverridesParser.create().parse_overrides(arguments):
        if override.value_type == ValueType.GLOB_CHOICE_SWEEP or override.is_hydra_override():
            continue
        if override.is_sweep_override():
            value = next(iter(override.sweep_string_iterator()))
        else:
            value = override.get_value_element_as_str()
        overrides.append(f"{override.get_key_element()}={value}")
    folder = tmp_path / "my_conf"
    folder.mkdir(exist_ok=True)
    overrides.append(f"hydra.searchpath=[file://{folder}]")
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(config_dir(), version_base="1.3"):
        return hydra.compose("config", overrides)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in TEXTS if any(commands(p))], ids=name_of)
def test_commands_of_a_page_have_keys_that_exist(page, tmp_path):
    if page in HOW_TOS:
        write_files(page, tmp_path)
    for arguments in commands(page):
        if arguments[0] in COMMANDS:  # not Hydra's
            continue
        cfg = _one_job([word for word in arguments if word != "-m"], tmp_path)
        assert cfg.task._target_.startswith("scope_torch.tasks.")


def test_a_key_that_does_not_exist_is_found(tmp_path):
    with pytest.raises(hydra.errors.ConfigCompositionException, match=r"budget"):
        _one_job(["task=synthetic", "budget_eur=3"], tmp_path)


def test_experiment_of_ones_own(tmp_path):
    write_files(DOCS / "howto/multiruns.md", tmp_path)
    cfg = _one_job(["experiment=kernels"], tmp_path)
    assert (cfg.task.name, cfg.experiment) == ("synthetic", "kernels")


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {link}"


def test_every_key_of_a_method_is_listed(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from config_keys import configuration

    listed = "\n".join(configuration())
    for key in ("method.bounds.b_g", "method.bounds.b_certify", "method.certificate", "seed"):
        assert f"`{key}`" in listed
    for key in ("task.num_queries", "llm.base_url", "tracking.mode", "kernel", "budget_usd"):
        assert f"| `{key}" in listed
    assert "`experiment=rq1_main`" in listed
