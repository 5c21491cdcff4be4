"""Generated requests: whatever a caller sends, a service answers and lives."""
