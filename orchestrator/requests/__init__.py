"""Requests and answers independent of the protocol: requests are validated and tokenised, and the
tokens of answers are turned into text and messages. No module of this package may depend on gRPC,
HTTP or the links to services. To understand this package, first read `request`, which defines a
request, and then `checks`.
"""
