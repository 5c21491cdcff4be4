"""OpenAI's `/v1/responses`, without state: its bodies are those of chats, its answers are made of
items. Begin with `body`, which says what becomes of each field; nothing here generates.
"""
