"""The verifier: runs the target model and decides which draft tokens are accepted."""
