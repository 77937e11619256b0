"""Saved choices: four forms of a file, and reading them back."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from results_for_tests import joint

from scope_torch import make_scope, make_scope_joint, run
from scope_torch.errors import InputError
from scope_torch.factors import LLM
from scope_torch.results import summary
from scope_torch.results.hashes import settings_hash
from scope_torch.results.saving import load_models, save_models
from scope_torch.tasks.synthetic import synthetic_task

ODD = {"Plan ner": "openai/gpt-5", "größe": "a; b * =!~%@+|<é>", 'say "hi"': "qwen2:0.5b #1"}
QUOTED = {"a": "it's", "b": 'the "best"', "c": "$HOME ${HOME}", "d": r"c:\\x", "e": "`id`"}
CHOICES = {"planner": LLM("gpt-5.2", effort="low", prompt="v1"), "solver": "nano top_p=0.5"}
FORMS = ["models.json", "a.yaml", "b.yml", ".env", "prod.env"]


@pytest.mark.parametrize(
    ("name", "models"),
    [*((name, models) for name in FORMS for models in ({"planner": "medium"}, ODD, CHOICES))]
    + [(name, QUOTED) for name in FORMS[:3]],
)
def test_what_is_saved_is_loaded(tmp_path, name, models):
    path = save_models(tmp_path / "new" / name, models, {})
    assert path == tmp_path / "new" / name
    assert load_models(path) == models
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_a_file_says_what_the_choice_rests_on(tmp_path):
    result = joint()
    for name, read in (("models.json", json.loads), ("models.yaml", yaml.safe_load)):
        assert read(result.save(tmp_path / name).read_text()) == {
            "version": 1,
            "models": result.choice,
            "basis": "certified",
            "certified": True,
            "quality": result.quality.value,
            "cost_usd": result.cost_usd.value,
            "reference": {"module_1": "frontier", "module_2": "frontier"},
            "settings_hash": settings_hash(result.settings),
        }


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_other_lines_of_an_env_file_stay(tmp_path, mode):
    path = tmp_path / ".env"
    path.write_text("OPENAI_API_KEY=sk-secret\n\nSCOPE_DATA_DIR=/data\nexport SCOPE_PLAN=old\n")
    path.chmod(mode)
    save_models(path, {"plan": "medium", "a b": "nano"}, {})
    others = "OPENAI_API_KEY=sk-secret\n\nSCOPE_DATA_DIR=/data\n"
    assert path.read_text() == (
        f'{others}# module "plan"\nSCOPE_PLAN=medium\n# module "a b"\nSCOPE_A_B=nano\n'
    )
    assert path.stat().st_mode & 0o777 == mode
    assert load_models(path) == {"plan": "medium", "a b": "nano"}
    save_models(path, {"plan": "large"}, {})
    assert path.read_text() == f'{others}# module "plan"\nSCOPE_PLAN=large\n'


def test_other_lines_of_an_env_file_stay_to_the_byte(tmp_path):
    """A value of somebody may have a character that ends a line elsewhere, or an end of Windows."""
    path = tmp_path / ".env"
    before = "A=a\u2028b\r\nB=a\x0cb\r\nC='a\nb'\n".encode()
    path.write_bytes(before)
    for _ in range(2):
        save_models(path, {"plan": "pro"}, {})
        assert path.read_bytes() == before + b'# module "plan"\nSCOPE_PLAN=pro\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package.json", '{"name": "my-app"}'),
        ("models.json", "{cut"),
        ("config.yaml", "models: {plan: nano}"),
        ("litellm_config.yaml", "model_list:\n- {model_name: gpt, litellm_params: {model: gpt}}\n"),
        ("litellm.yaml", "model_list: []\ngeneral_settings: {master_key: sk}\n"),
    ],
)
def test_a_file_of_something_else_is_not_replaced(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match="holds something else; choose another name"):
        save_models(path, {"plan": "medium"}, {})
    assert path.read_text() == content


@pytest.mark.parametrize("name", ["models.json", "models.yaml", "litellm.yaml"])
def test_a_file_of_an_earlier_choice_is_replaced(tmp_path, name):
    (tmp_path / name).touch()
    save_models(tmp_path / name, {"plan": "nano", "solve": "nano"}, {})
    save_models(tmp_path / name, {"plan": "medium"}, {})
    assert len(load_models(tmp_path / name)) == 1


def test_names_of_variables_are_safe(tmp_path):
    text = save_models(tmp_path / ".env", ODD, {}).read_text()
    names = [line.partition("=")[0] for line in text.splitlines() if line.startswith("SCOPE_")]
    assert names == ["SCOPE_PLAN_NER", "SCOPE_GR_SSE", "SCOPE_SAY__HI_"]
    assert all(name.replace("_", "").isalnum() and name.isascii() for name in names)


def test_others_read_the_same_variables(tmp_path):
    path = save_models(tmp_path / ".env", ODD, {})
    expected = ["openai/gpt-5", "a; b * =!~%@+|<é>", "qwen2:0.5b #1"]
    names = ["SCOPE_PLAN_NER", "SCOPE_GR_SSE", "SCOPE_SAY__HI_"]
    shown = 'set -a; . "$0"; for name in "$@"; do printf "%s\\n" "${!name}"; done'
    done = subprocess.run(["bash", "-c", shown, path, *names], capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == expected
    dotenv = pytest.importorskip("dotenv")
    found = dotenv.dotenv_values(path)
    assert [found[name] for name in names] == expected


def test_variables_of_an_early_version_are_read(tmp_path):
    path = tmp_path / ".env"
    path.write_text("SCOPE_A='it'\"'\"'s $HOME'\n")
    assert load_models(path) == {"a": "it's $HOME"}


def test_a_file_of_variables_without_comments(tmp_path):
    path = tmp_path / "my.env"
    path.write_text("OTHER=1\nSCOPE_PLANNER=medium\nSCOPE_SOLVER='a b'\n")
    assert load_models(path) == {"planner": "medium", "solver": "a b"}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"a-b": "x", "a_b": "y"}, "would both be SCOPE_A_B"),
        ({"a": "x\ny"}, "cannot hold"),
        *(
            ({"a": llm}, r"has characters that .env cannot hold; save a \*.json")
            for llm in QUOTED.values()
        ),
    ],
)
def test_variables_that_cannot_be(tmp_path, models, message):
    with pytest.raises(InputError, match=message):
        save_models(tmp_path / ".env", models, {})
    assert list(tmp_path.iterdir()) == []


MODELS = {"planner": "medium", "solver": "claude-sonnet-5", "judge": "groq/llama", "x": "meta/y"}


def test_litellm_gets_a_model_for_each_module(tmp_path):
    path = save_models(tmp_path / "litellm.yaml", MODELS, {"quality": 1.0})
    found = yaml.safe_load(path.read_text())
    assert found.keys() == {"model_list"}
    assert {m["model_name"]: m["litellm_params"]["model"] for m in found["model_list"]} == {
        "scope/planner": "openai/medium",
        "scope/solver": "anthropic/claude-sonnet-5",
        "scope/judge": "groq/llama",
        "scope/x": "openai/meta/y",
    }
    assert load_models(path)["planner"] == "openai/medium"


LOADS = """
import sys, yaml, litellm
router = litellm.Router(model_list=yaml.safe_load(open(sys.argv[1]))["model_list"])
print(*sorted(router.get_model_names()))
"""


@pytest.mark.slow
def test_litellm_loads_it(tmp_path):
    """In a process of its own: LiteLLM may lie in the folder $SCOPE_AGENTS only."""
    folder = os.environ.get("SCOPE_AGENTS", "")
    if find_spec("litellm") is None and not Path(folder, "litellm").is_dir():
        pytest.skip("needs litellm")
    models = MODELS | {"effort": "gpt-5.2 effort=low temperature=0.5"}
    path = save_models(tmp_path / "litellm_config.yaml", models, {})
    environment = {**os.environ, "PYTHONPATH": folder, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-c", LOADS, path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(f"scope/{module}" for module in models)


@pytest.mark.parametrize("name", ["models.toml", "models", "models.txt"])
def test_an_unknown_form(tmp_path, name):
    message = r'name it "models.json", "models.yaml", ".env", "litellm.yaml" or "report.html"'
    with pytest.raises(InputError, match=message):
        joint().save(tmp_path / name)
    with pytest.raises(InputError, match=message):
        load_models(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", '{"version": 2, "models": {"a": "b"}}'),
        ("a.json", '{"version": 1}'),
        ("a.json", '{"version": 1, "models": {}}'),
        ("a.json", '{"version": 1, "models": {"a": 3}}'),
        ("a.json", '{"version": 1, "models": "medium"}'),
        ("a.yaml", "a: ["),
        ("a.yaml", ""),
        (".env", "OTHER=1"),
        (".env", "SCOPE_A='x"),
        (".env", "SCOPE_A=x y"),
        ("litellm.yaml", "model_list: 3"),
        ("litellm.yaml", "model_list: [{model_name: scope/a}]"),
    ],
)
def test_damaged_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"gives no LLM for each module.*result.save"):
        load_models(tmp_path / name)


@pytest.mark.parametrize("name", ["models.json", "models.yaml", ".env"])
def test_a_file_that_windows_has_saved_again(tmp_path, name):
    """Its mark of byte order is no letter of the first line; that of .env names a module."""
    models = {"plan": "medium", "solve": "large"}
    path = save_models(tmp_path / name, models, {})
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load_models(path) == models
    save_models(path, {**models, "plan": "small"}, {})
    assert load_models(path) == {**models, "plan": "small"}


def test_exported_variables_are_read_too(tmp_path):
    path = tmp_path / ".env"
    path.write_text('# module "plan"\nexport SCOPE_PLAN=medium\n# module "b"\nSCOPE_B=large\n')
    assert load_models(path) == {"plan": "medium", "b": "large"}


@pytest.mark.parametrize("gone", ["SCOPE_PLAN=medium\n", "SCOPE_SOLVE=large\n"])
def test_a_module_without_its_variable_is_not_left_out(tmp_path, gone):
    path = save_models(tmp_path / ".env", {"plan": "medium", "solve": "large"}, {})
    path.write_text(path.read_text().replace(gone, f"#{gone}"))
    with pytest.raises(InputError, match=r"no variable stands below module '(plan|solve)'"):
        load_models(path)


def test_a_module_twice_as_after_a_merge_is_refused(tmp_path):
    path = tmp_path / "models.json"
    path.write_text('{"version": 1, "models": {"plan": "medium", "plan": "large"}}')
    with pytest.raises(InputError, match=r"'plan' is there twice"):
        load_models(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        load_models(tmp_path / "models.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        joint().save(tmp_path / "file" / "models.json")


def test_what_cannot_be_replaced_is_told_in_words_of_a_file(tmp_path):
    (tmp_path / "models.json").mkdir()
    message = r"cannot write \S+models\.json: Is a directory; choose another place, or make"
    with pytest.raises(InputError, match=message):
        save_models(tmp_path / "models.json", {"plan": "medium"}, {})
    (tmp_path / "data.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"data\.json holds something else; choose another name"):
        save_models(tmp_path / "data.json", {"plan": "medium"}, {})


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_every_key_of_the_result_is_explained(make):
    task = synthetic_task()
    result = run(task.problem, make(task.problem, base="small", seed=0), task.evaluator, 1.0)
    explained = set(re.findall(r"`(\w+)`", summary.__doc__))
    assert {*result.summary()} - explained == set()
