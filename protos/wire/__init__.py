"""Values of the contract to and from its messages."""
