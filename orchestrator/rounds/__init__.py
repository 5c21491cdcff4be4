"""One request's streams at a drafter and a verifier, and the relay between them."""
