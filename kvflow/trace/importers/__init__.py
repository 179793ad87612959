"""Importers: traces as other projects publish them, turned into events.

    base            what an importer is            reading    files, detection, rows that cannot be used
    conversation    growing prompts                threads    parallel threads in one order

One module per shape of source: ``sessions`` (messages with LLM and tool calls), ``dialogue`` (two LLMs talk to each
other), ``weka`` and ``hashes`` (prompts as hashes of their blocks).
"""

from kvflow.trace.importers.reading import FORMATS, import_trace, open_trace

__all__ = ["FORMATS", "import_trace", "open_trace"]
