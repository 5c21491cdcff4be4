"""The client API over HTTP, as OpenAI clients speak it: routes, bodies, replies and errors. The
package is a shell over the front end's `Answers`, so it must not know gRPC, links or relays. Start
reading in `app`, which has the routes.
"""
