"""Channels, servers, statuses and health."""
