"""The `tandem` command: it starts services as processes, and sends requests to a running front end.
The commands start services as separate processes and talk to them only through the client API, so
this package must import neither Ray nor the server of a cell. To understand this package, first
read `app`, which defines all commands.
"""
