"""How good the models are: each of them asked before it is told, over the events of a trace.

    scores      areas, losses, coverage        tools       durations of tool calls
    agents      who runs next, and whether     uses        when a context is used next

Read by ``kvflow predict eval``; nothing here runs in a server. What a server takes from learned graphs is taken from
``transitions`` and ``look_ahead`` here, which know what followed which two agents.
"""
