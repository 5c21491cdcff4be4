"""Make faults in the processes of a running system, and check whether a client could tell."""
