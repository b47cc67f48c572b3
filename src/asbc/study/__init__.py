"""Many runs as one study: what to run, what is done already, what is left."""
