"""A real LLM on this machine, from package to result.

SCOPE_LLM_DIR names a folder with weights, such as smollm2-135m.gguf, to do without the download.
"""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scripts import local_llms

pytestmark = pytest.mark.slow
MODEL = "smollm2-135m"


@pytest.fixture(name="url")
def fixture_of_a_server(tmp_path):
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: pip install 'scope-torch[local]'")
    directory = Path(os.environ.get("SCOPE_LLM_DIR") or tmp_path / "weights")
    try:
        path = local_llms.fetch(local_llms.model_files()[MODEL], directory)
    except InputError as error:
        pytest.skip(f"no weights: {error}")
    served = local_llms.LocalLLMs({MODEL: path})
    yield served.url
    served.close()


def test_scope_searches_with_a_real_llm(cli, url):
    status, out, err = cli(
        "task=airport_city",
        "evaluator=live",
        f"llm.base_url={url}",
        "llm.concurrency=2",
        "llm.timeout_s=300",
        "task.num_queries=12",
        "task.llms=[SmolLM2-135M,SmolLM2-135M few-shot]",
        "task.reference=[SmolLM2-135M few-shot]",
        "task.reference_quality=0.25",  # measured, it may be 0, which sets no threshold
        "task.reference_cost_usd=1e-5",
        "base=SmolLM2-135M",
        "budget_usd=4e-5",
    )
    assert (status, err) == (0, "")
    assert "airport_city scope_joint seed 0: parse: SmolLM2-135M" in out
    (path,) = Path("outputs").rglob("result.json")
    result = json.loads(path.read_text())
    lines = path.with_name("journal.jsonl").read_text().splitlines()
    observations = [Observation.from_json(line) for line in lines]
    assert 0 < result["num_observations"] <= len(observations)
    for observation in observations:
        assert 0 <= observation.quality <= 1
        assert observation.cost_usd > 0
        assert all(min(tokens) > 0 for tokens in observation.module_tokens)
