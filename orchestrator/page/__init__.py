"""The status page, which shows the served model and its figures in a browser."""
