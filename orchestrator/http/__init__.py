"""The client API over HTTP, as OpenAI clients speak it."""
