"""An LLM server on this machine, and an agent that asks it, as AgentOpt's users write it."""

import httpx
import pytest
from integrations.agentopt_cases import answer
from llm.fake_endpoint import FakeEndpoint, only_loopback  # noqa: F401


@pytest.fixture
def server():
    with FakeEndpoint(answer) as serving:
        yield serving


@pytest.fixture
def client():
    with httpx.Client() as shared:
        yield shared


@pytest.fixture
def agent(server, client):
    """The class of an agent, as AgentOpt's users write it."""

    class PlanAndSolve:
        def __init__(self, models):
            self.models = models

        def ask(self, node, text):
            asked = {"model": self.models[node], "messages": [{"role": "user", "content": text}]}
            reply = client.post(f"{server.url}/chat/completions", json=asked)
            return reply.json()["choices"][0]["message"]["content"]

        def run(self, question):
            plan = self.ask("planner", f"Plan: {question}")
            return self.ask("solver", f"Solve: {question} by {plan}")

    return PlanAndSolve


@pytest.fixture
def quiet(capsys):
    """Runs a selector; AgentOpt's own print while they work."""

    def results_of(selector, **flags):
        results = selector.select_best(**flags)
        capsys.readouterr()
        return results

    return results_of
