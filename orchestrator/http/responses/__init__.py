"""OpenAI's `/v1/responses`, without stored state. Its bodies become bodies of chats, and its
answers consist of items. No module here may generate anything, since generation is the front end's
work. Start reading in `body`, which maps each field to a field of chats.
"""
