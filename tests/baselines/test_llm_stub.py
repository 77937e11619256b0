"""The stand-in for LLAMBO's LLM: seeded, sometimes malformed, blind to all but the prompt."""

from dataclasses import replace

import pytest
from tables import make_task

from scope_torch.baselines.llambo_prompts import HistoryLine, Prompts
from scope_torch.baselines.llm_stub import StubLLM, read_prompt


class TestStub:
    problem = make_task(1, (4, 3, 2), 6).problem
    prompts = Prompts(problem, prices={"llm0": (0.001, 0.001), "llm1": (9.0, 9.0)})
    history = (HistoryLine((2, 0, 1), 2e-3, 0.9), HistoryLine((1, 1, 1), 1e-3, 0.8))

    def replies(self, messages, n=50, seed=0, malformed=0.0):
        return StubLLM(seed, malformed).complete(messages, n, 1.0, 100).texts

    def test_same_seed_and_prompt_same_replies_but_not_the_second_time(self):
        chat = self.prompts.warm_start(3)
        one, two = StubLLM(1), StubLLM(1)
        first = one.complete(chat, 4, 0.7, 99)
        assert first == two.complete(chat, 4, 0.7, 99)
        assert first != one.complete(chat, 4, 0.7, 99)
        assert first != StubLLM(2).complete(chat, 4, 0.7, 99)

    def test_starts_with_cheap_llms(self):
        replies = self.replies(self.prompts.warm_start(10))
        thetas = [t for r in replies for t in self.prompts.parse_warm_start(r)]
        assert len(thetas) == 500
        share = sum(t[0] == 0 for t in thetas) / len(thetas)
        assert share > 0.8
        plain = Prompts(self.problem)
        thetas = [t for r in self.replies(plain.warm_start(10)) for t in plain.parse_warm_start(r)]
        assert 0.15 < sum(t[0] == 0 for t in thetas) / len(thetas) < 0.35

    def test_changes_one_or_two_modules_of_the_best_feasible(self):
        history = [*self.history, HistoryLine((0, 0, 0), 1e-5, 0.0)]  # cheap and infeasible
        replies = self.replies(self.prompts.candidate(history, 1e-4))
        distances = {
            sum(a != b for a, b in zip(self.prompts.parse_candidate(r), (1, 1, 1), strict=True))
            for r in replies
        }
        assert distances == {1, 2}

    def test_predicts_what_was_measured_nearby(self):
        means = {}
        for theta in ((1, 1, 1), (2, 0, 1)):
            replies = self.replies(self.prompts.predict(self.history, theta))
            drawn = [self.prompts.parse_prediction(reply) for reply in replies]
            costs, qualities = zip(*drawn, strict=True)
            assert len(set(costs)) > 10
            means[theta] = sum(costs) / 50, sum(qualities) / 50
        assert means[1, 1, 1][0] == pytest.approx(1e-3, rel=0.15)
        assert means[1, 1, 1][1] == pytest.approx(0.8, abs=0.05)
        assert means[2, 0, 1][0] == pytest.approx(2e-3, rel=0.15)

    def test_predicts_for_a_module_with_the_name_of_a_key(self):
        problem = replace(self.problem, modules=("llm", *self.problem.modules[1:]))
        prompts = Prompts(problem, prices={"llm0": (0.001, 0.001)})
        replies = self.replies(prompts.predict(self.history, (1, 0, 1)))
        assert all(prompts.parse_prediction(reply) for reply in replies)

    def test_some_replies_are_malformed(self):
        for chat, parse in (
            (self.prompts.warm_start(3), self.prompts.parse_warm_start),
            (self.prompts.candidate(self.history, 1e-4), self.prompts.parse_candidate),
            (self.prompts.predict(self.history, (0, 0, 0)), self.prompts.parse_prediction),
        ):
            replies = self.replies(chat, 400, malformed=0.3)
            assert 40 < sum(parse(reply) is None for reply in replies) < 200

    def test_knows_only_what_the_prompt_says(self):
        prompt = read_prompt(self.prompts.candidate(self.history, 1e-4)[-1]["content"])
        llms = map(list, self.problem.llms)
        assert prompt.candidates == dict(zip(self.problem.modules, llms, strict=True))
        reference = (self.problem.names(self.problem.theta_ref), *prompt.measured[0][1:])
        assert prompt.measured == [
            reference,
            *((self.problem.names(m.theta), m.cost_usd * 1000, m.quality) for m in self.history),
        ]
        assert prompt.s_0 == pytest.approx(self.problem.s_0, rel=1e-5)

    @pytest.mark.parametrize(
        "text", ["", "hello", "Modules in order: [", 'Modules in order: ["a"]', "Task: predict"]
    )
    def test_another_text_gets_an_unreadable_reply(self, text):
        replies = self.replies([{"role": "user", "content": text}], 2)
        assert replies == ("I do not understand.",) * 2
