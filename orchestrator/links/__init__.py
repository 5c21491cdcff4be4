"""A link to each replica, one balanced link to each service, and the relays that run over them. The
package handles streams and sessions. It must not depend on the client API or on the format of
answers. Start reading in `relays`, which runs requests.
"""
