"""Importers: traces as other projects publish them, turned into events.

    base            what an importer is            reading       files, detection, rows that cannot be used
    conversation    growing prompts                contexts      prompts put together from whole texts
    runs            prompts as runs of blocks      fixed         fixed prompts, seen or counted only
    threads         parallel threads in one order  toolruns      tool calls by their times

One module per shape of source; each says what it assumes beyond what the source says:

    sessions (rows: sessionrow)    coding agents and tau-bench: messages, LLM calls, tool calls
    dialogue                       two LLMs talk to each other (tau2-bench)
    prompts                        LLM calls with the text of their prompts
    groupchat, metagpt, chatdev, marble    programs of several agents
    bfcl                           function calling tasks
    weka, hashes                   prompts as hashes of their blocks
    recording                      what kvflow's own client writes
"""

from kvflow.trace.importers.reading import FORMATS, import_trace, open_trace

__all__ = ["FORMATS", "import_trace", "open_trace"]
