"""OpenAI's `/v1/responses`, without state: its bodies become bodies of chats, and its answers are
made of items. No module here may generate anything: that is the front end's work. Start reading in
`body`, which maps each field to a chat's.
"""
