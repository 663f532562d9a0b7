"""Commands of research: each measures something of methods."""
