"""Requests and answers as plain values for every protocol: how requests are checked and become
tokens, and how the tokens of answers become text.
"""
