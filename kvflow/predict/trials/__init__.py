"""How good the models are: each of them asked before it is told, over the events of a trace.

    scores      areas, losses, coverage        tools       durations of tool calls
    agents      who runs next, and whether     uses        when a context is used next

Read by ``kvflow predict eval``; nothing here runs in a server. Where a server has learned graphs, evaluations have
``transitions`` and ``look_ahead``, which know what followed which two agents.
"""
