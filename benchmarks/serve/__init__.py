"""Put load on a server, and measure what its users notice."""
