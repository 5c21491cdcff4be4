"""The client API: who may call it and when, how answers are streamed, and the service's status."""
