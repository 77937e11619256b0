"""An unchanged application: OpenAI Agents SDK, with a tool."""

import sys

from agents import Agent, Runner, function_tool


@function_tool
def look_up(city: str) -> str:
    """The population of a city."""
    return {"Reykjavik": "140 thousand"}.get(city, "unknown")


solver = Agent(name="solver", model="solver", instructions="Answer in one sentence.")
planner = Agent(name="planner", model="planner", instructions="Collect facts.", tools=[look_up])
facts = Runner.run_sync(planner, sys.argv[1]).final_output
print(Runner.run_sync(solver, f"{sys.argv[1]} {facts}").final_output)
