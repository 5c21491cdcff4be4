"""The client API over HTTP, compatible with OpenAI clients: routes, request bodies, responses and
errors. The package only translates between HTTP and the front end's `Answers`, so it must not
depend on gRPC, links or relays. To understand this package, first read `app`, which defines the
routes.
"""
