"""The demonstration: a real multi-agent program against the real SGLang server, with kvflow and without.

`program` is what a user would write, `corpus` finds it real text to work on, `arms` runs servers, `run` plays rounds
in alternation and compares. Sits above `patches`, for the CPU engine, and `report`.
"""

from kvflow.demo.run import DemoSettings, run_demo

__all__ = ["DemoSettings", "run_demo"]
