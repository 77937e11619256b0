"""An unchanged application: LangGraph, with a tool."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def look_up(city: str) -> str:
    """The population of a city."""
    return {"Reykjavik": "140 thousand"}.get(city, "unknown")


planner = ChatOpenAI(model="scope/planner").bind_tools([look_up])
solver = ChatOpenAI(model="scope/solver", streaming=True)
graph = StateGraph(MessagesState)
graph.add_node("planner", lambda state: {"messages": [planner.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([look_up]))
graph.add_node("solver", lambda state: {"messages": [solver.invoke(state["messages"])]})
graph.add_conditional_edges("planner", tools_condition, {"tools": "tools", "__end__": "solver"})
graph.add_edge("tools", "planner")
graph.set_entry_point("planner")
answer = graph.compile().invoke({"messages": [("user", sys.argv[1])]})
print(answer["messages"][-1].content)
