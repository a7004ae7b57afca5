"""A finished job's model at its site: it answers questions about pictures, and goes into a folder."""
