"""An unchanged application: DSPy, its cache off."""

import sys

import dspy


class Application(dspy.Module):
    def __init__(self):
        self.plan = dspy.Predict("question -> plan")
        self.plan.set_lm(dspy.LM("openai/scope/planner", cache=False))
        self.solve = dspy.ChainOfThought("question, plan -> answer")
        self.solve.set_lm(dspy.LM("openai/scope/solver", cache=False))

    def forward(self, question):
        plan = self.plan(question=question).plan
        return self.solve(question=question, plan=plan)


print(Application()(question=sys.argv[1]).answer)
