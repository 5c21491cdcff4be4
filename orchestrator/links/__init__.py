"""A link to each replica, one balanced link to each service, and the relays that run over them. The
package handles streams and sessions. This package must not depend on the client API or on the
format of answers. To understand it, first read `relays`, which runs requests.
"""
