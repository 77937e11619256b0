"""The suite for rules beside Algorithm 1."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation
from scope_torch.search.rules import Rule
from scope_torch.search.scope import SCOPE
from scope_torch.testing.optimizers import drive
from scope_torch.testing.problems import KnownTask

MakeRule = Callable[[], Rule]
_COUNT = 400  # observations


class RuleConformance:
    """What every rule must do; a subclass overrides the fixture `make_rule`.

    It returns a function that makes a rule. `make_scope` and `make_scope_joint` run with it on 12
    configurations and 6 queries.

    Examples:
        >>> class TestMyRule(RuleConformance):
        ...     @pytest.fixture
        ...     def make_rule(self):
        ...         return lambda: MyRule(3)
    """

    @pytest.fixture
    def make_rule(self) -> MakeRule:
        """Makes a fresh rule."""
        raise NotImplementedError("override the fixture make_rule; it returns a function")

    @pytest.fixture(params=[make_scope, make_scope_joint], ids=["scope", "scope_joint"])
    def search(self, request: pytest.FixtureRequest) -> Callable[..., SCOPE]:
        """Makes a search with some rules."""

        def with_rules(rules: Sequence[Rule], seed: int = 0, of_task: int = 5) -> SCOPE:
            return request.param(self.task(of_task).problem, base="llm0", seed=seed, rules=rules)

        return with_rules

    @staticmethod
    def task(seed: int = 5) -> KnownTask:
        """What is searched."""
        return KnownTask.random(seed, (4, 3), 6)

    def test_it_only_ends_a_search(self, make_rule: MakeRule, search: Callable[..., SCOPE]) -> None:
        """The requests are those without it, up to some point; the reason is a text."""
        plain, ruled = search([]), search([make_rule()])
        without, with_it = (drive(one, self.task(), _COUNT) for one in (plain, ruled))
        assert with_it == without[: len(with_it)]
        if len(with_it) < len(without):
            assert isinstance(ruled.stop_reason, str)
            assert ruled.trace[-1].event == "stopped"

    def test_a_resumed_search_ends_where_it_did(
        self, make_rule: MakeRule, search: Callable[..., SCOPE]
    ) -> None:
        """It decides by what it was told, so that a journal can be replayed."""
        for seed in range(3):
            one, two = (search([make_rule()], seed) for _ in range(2))
            history: list[Observation] = drive(one, self.task(), _COUNT)
            assert drive(two, self.task(), _COUNT) == history
            assert one.stop_reason == two.stop_reason
            assert one.report() == two.report()

    def test_looking_changes_nothing(
        self, make_rule: MakeRule, search: Callable[..., SCOPE]
    ) -> None:
        """`settings` and `report` may be asked for at any time, and are JSON."""
        rule = make_rule()
        watched, alone = search([rule]), search([make_rule()])
        before = json.dumps(rule.settings(), allow_nan=False, sort_keys=True)
        history: list[Observation] = []
        while len(history) < _COUNT and (found := drive(watched, self.task(), 1)):
            json.dumps(rule.report(), allow_nan=False)
            history += found
        assert history == drive(alone, self.task(), _COUNT)
        assert json.dumps(rule.settings(), allow_nan=False, sort_keys=True) == before

    def test_a_second_search_starts_anew(
        self, make_rule: MakeRule, search: Callable[..., SCOPE]
    ) -> None:
        """`begin` forgets the search before."""
        rule = make_rule()
        first = drive(search([rule]), self.task(), _COUNT)
        drive(search([rule], 1, 6), self.task(6), 40)
        assert drive(search([rule]), self.task(), _COUNT) == first

    def test_its_settings_are_those_of_the_search(
        self, make_rule: MakeRule, search: Callable[..., SCOPE]
    ) -> None:
        """So a run with a rule is not taken for one without."""
        rule = make_rule()
        settings = search([rule]).settings()
        assert settings["rules"] == [{"rule": type(rule).__name__, **rule.settings()}]
        assert "rules" not in search([]).settings()
