"""Send generated requests: whatever a caller sends, a service must answer and live."""
