"""A link to each replica, one balanced link to each service, and the relays that run over them."""
