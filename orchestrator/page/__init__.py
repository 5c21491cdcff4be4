"""The status page, which shows the served model and its metrics in a browser, and documents with
the same content for programs. The package only reads a status that the front end has collected, and
must not depend on the HTTP API. To understand this package, first read `served`, which adds the
pages to the process's other HTTP pages.
"""
