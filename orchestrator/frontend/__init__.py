"""The client API: who may ask and when, answers streamed, and how everything is doing."""
