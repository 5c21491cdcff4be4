"""One request's two streams, to a drafter and a verifier, and what crosses between them."""
