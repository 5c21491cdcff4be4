"""One link to each replica, all of a service as one, and the relays that run over them."""
