"""A finished job's model at its site: answers to questions about pictures, and export into a folder."""
