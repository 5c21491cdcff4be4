"""Requests and answers as plain values for every protocol: how requests are checked and become
tokens, and how the tokens of answers become text and messages. No module here may know gRPC, HTTP
or the links to services. Start reading in `request`, which has the values, and then in `checks`.
"""
