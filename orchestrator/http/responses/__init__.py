"""OpenAI's `/v1/responses`, without state: its bodies become bodies of chats, and its answers are
made of items. Begin with `body`, which maps each field to a chat's. No module here generates.
"""
