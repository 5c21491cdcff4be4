"""The client API: requests checked, answers streamed."""
