"""Example programs that use a running Tandem as any client could."""
