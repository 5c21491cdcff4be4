"""The `tandem` command: it starts services as processes, and sends requests to a running front end.
The commands start services by command lines and reach them through the client API, so this package
must not import the server of a cell or Ray. Start reading in `app`, which has all commands.
"""
