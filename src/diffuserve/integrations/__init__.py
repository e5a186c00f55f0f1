"""Our engine inside other servers: Triton, TorchServe and those that run Python themselves.

Each folder is thin: parameters in, one engine in the server's own process, images out, and errors in that
server's form. There is no queue that outlives the process, no fairness and no API key: those are the control
plane's.
"""
