"""The status page: what is served and how it is doing, for a browser."""
