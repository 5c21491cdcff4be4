"""The client API, and the relay of commits and proposals for many requests."""
