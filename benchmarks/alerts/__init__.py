"""Every alert made to fire by its fault, as a real Prometheus and a real Alertmanager see it."""
