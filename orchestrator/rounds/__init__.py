"""One request's streams at a drafter and a verifier, and what is relayed between them."""
