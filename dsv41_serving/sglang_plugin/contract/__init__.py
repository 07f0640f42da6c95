"""The chat contract inside the engine: what SGLang's HTTP surface accepts, adds and answers on every path.

The table `[contract]` of the node description reaches every engine as one environment variable. SGLang's own settings
carry out what they can (parsers, thinking, sampling defaults); this package does the rest in one ASGI middleware in front
of SGLang's application and a few hooks behind it. SGLang loads it through the entry point `dsv41_contract` of the group
`sglang.srt.plugins`; `GET /contract` says that it is in force and with which values.

    plugin      entry point: reads the table, applies the hooks, stops the process when SGLang is not the one they fit
    hooks       the hooks of the server process, one row each
    reasoning   a hook of the scheduler: constrained answers after reasoning
    seeds       hooks of the scheduler: a request's seed
    middleware  the way of one request: read, refuse or normalise, pass on, give errors one shape
    requests    what each endpoint accepts
    thinking    the five spellings of thinking and effort, as one
    errors      the shapes of an error
    report      what this engine has in force
"""
