"""The `tandem` command: it starts services as processes, and asks a running front end. Both happen
through command lines and the client API, so this package must not import the server of a cell or
Ray. Start reading in `app`, which has all commands.
"""
