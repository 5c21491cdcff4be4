"""The status page, which shows the served model and its figures in a browser, and similar documents
for programs. The page only reads a status that the front end has collected, and must not know the
HTTP API. Start reading in `served`, which adds the pages to those of the process.
"""
