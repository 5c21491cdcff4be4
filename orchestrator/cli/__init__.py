"""The `tandem` command: it starts services as processes, and asks a running front end. The commands
use only command lines and the client API, so this package must not import the server of a cell or
Ray. Start reading in `app`, which has all commands.
"""
