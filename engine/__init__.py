"""Many sessions on one model: what drafter and verifier share. Torch lives here."""
