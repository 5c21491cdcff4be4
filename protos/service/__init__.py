"""What running a service process takes: settings, command line, stopping, processor cores."""
