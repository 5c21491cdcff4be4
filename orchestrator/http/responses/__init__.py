"""OpenAI's `/v1/responses` API, without stored responses. Request bodies are converted to chat
bodies, and answers are formatted as items. No module of this package may generate text, which is
the front end's task. To understand this package, first read `body`, which maps each field to a
field of a chat body.
"""
