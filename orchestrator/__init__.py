"""The client API, and the relay of facts and guesses for many requests."""
