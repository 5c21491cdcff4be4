"""A link to each replica, one balanced link to each service, and the relays that run over them. The
package knows streams and sessions, but must not know what a client asked for or how answers are
written. Start reading in `relays`, which runs requests.
"""
