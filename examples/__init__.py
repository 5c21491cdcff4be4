"""Programs that use a running Tandem as any client would."""
