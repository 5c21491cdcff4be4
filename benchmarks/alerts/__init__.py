"""Make every alert fire by its fault, with a real Prometheus and a real Alertmanager."""
