"""The parts that every service process needs: settings, command line, stopping, processor cores."""
